"""The ONNX function body of ``selfdraft::GatedDeltaRule`` in standard operators.

Contract and rule: docs/gated_delta.md. Log and step make one window of rows, in blocks of
``DELTA_BLOCK`` from the recurrent state on. A block has a closed form in products of fixed shape, in
which rows that are not there yet are zeros: so a row has the same bits whatever runs with it, and
the state of a full block is the same whichever steps it was computed in.

A step within one block reads the state once and writes none of it. Else a loop carries the state
from block to block. Every read of the state stands inside that branch, and ``ScatterND``, which
writes in place where input and output are bound to one address, behind it.
"""

from __future__ import annotations

from selfdraft.recurrent import DELTA_BLOCK, LOG_ROWS
from selfdraft.trt_plugins.gated_delta_rule.contract import (
    INPUTS,
    L2_EPS,
    OP_DOMAIN,
    OUTPUTS,
    GatedDeltaRule,
)


def function_text(op: GatedDeltaRule, *, name: str, opset: int, checks: bool = False) -> str:
    """The body in ONNX's text format, for ``onnx.parser.parse_function``.

    ``checks``: the form of the check variant, in which no length decides a shape or a branch. fp16
    rows are widened first, and those that are logged narrowed last: they are copies, so exactly.
    """
    # Without lengths: as many rows as log and step can have. Those of no slot are zeros, which change nothing.
    longest = "Add (row_end, log)" if checks else "ReduceMax <keepdims = 0> (total)"
    window = WINDOW.replace("LONGEST", longest)
    states = _whole_states(op) if checks else _states(op)
    parts = [_constants(op), window, _convolution(op), _heads(op), BLOCKS, states, _out(op)]
    inputs, outputs = list(INPUTS), list(OUTPUTS)
    if op.row_dtype == "fp16":
        parts = [WIDENED, *parts, NARROWED]
        inputs = [f"{name}_half" if name in ("x", "conv_rows") else name for name in inputs]
        outputs = ["conv_rows_half_out" if name == "conv_rows_out" else name for name in outputs]
    return (
        f'<opset_import: ["" : {opset}], domain: "{OP_DOMAIN}">\n'
        f"{name} ({', '.join(inputs)}) => ({', '.join(outputs)})\n"
        f"{{\n{''.join(parts)}\n}}\n"
    )


WIDENED = """
  x = Cast <to = 1> (x_half)
  conv_rows = Cast <to = 1> (conv_rows_half)
"""
NARROWED = """
  conv_rows_half_out = Cast <to = 10> (conv_rows_out)
"""


def _floats(rows: list[list[float]]) -> str:
    values = ", ".join(str(value) for row in rows for value in row)
    return f"float[{len(rows)},{len(rows[0])}] {{{values}}}"


def _constants(op: GatedDeltaRule) -> str:
    size = range(DELTA_BLOCK)
    unit = _floats([[float(i == j) for j in size] for i in size])
    strict = _floats([[float(j < i) for j in size] for i in size])
    barred = _floats([[0.0 if j <= i else 1.0 for j in size] for i in size])
    return f"""
  zero = Constant <value = int64 {{0}}> ()
  one = Constant <value = int64 {{1}}> ()
  zeros = Constant <value = int64[1] {{0}}> ()
  ones = Constant <value = int64[1] {{1}}> ()
  twos = Constant <value = int64[1] {{2}}> ()
  last_axis = Constant <value = int64[1] {{-1}}> ()
  trailing = Constant <value = int64[3] {{1, 2, 3}}> ()
  block = Constant <value = int64 {{{DELTA_BLOCK}}}> ()
  block_less_one = Constant <value = int64 {{{DELTA_BLOCK - 1}}}> ()
  log = Constant <value = int64 {{{LOG_ROWS}}}> ()
  before = Constant <value = int64 {{{op.taps - 1}}}> ()
  kept = Constant <value = int64 {{{op.taps - 1 + LOG_ROWS}}}> ()
  nothing = Constant <value = float {{0.0}}> ()
  blocked = Constant <value = float {{-inf}}> ()
  eps = Constant <value = float {{{L2_EPS}}}> ()
  unit = Constant <value = {unit}> ()
  strict = Constant <value = {strict}> ()
  above = Constant <value = {barred}> ()
  halves = Constant <value = int64[2] {{{DELTA_BLOCK}, {DELTA_BLOCK}}}> ()
"""


WINDOW = """
  rows = Shape <start = 1, end = 2> (x)
  row_end = Squeeze (rows)
  last_row = Sub (row_end, one)
  fresh = Equal (past_len, zero)
  runs = Greater (row_count, zero)
  total = Add (replay_rows, row_count)
  longest = LONGEST
  rounded = Add (longest, block_less_one)
  needed = Div (rounded, block)
  blocks = Max (needed, one)
  width = Mul (blocks, block)
  last_t = Sub (width, one)
  raw_width = Add (width, before)
  last_raw = Sub (raw_width, one)
  begun_block = Div (past_len, block)
  begun = Mul (begun_block, block)
  end = Add (past_len, row_count)
  end_rounded = Add (end, block_less_one)
  end_block = Div (end_rounded, block)
  end_full = Mul (end_block, block)
  least = Sub (end_full, log)
  new_len = Max (begun, least)
  old_len = Sub (past_len, replay_rows)
  advance = Sub (new_len, old_len)
  moved = Where (runs, advance, zero)
  replay = Unsqueeze (replay_rows, ones)
  count = Unsqueeze (row_count, ones)
  fresh_2d = Unsqueeze (fresh, ones)
  old_2d = Not (fresh_2d)
  moved_2d = Unsqueeze (moved, ones)
  raw_row = Range (zero, raw_width, one)
  log_end = Add (replay, before)
  raw_logged = Less (raw_row, log_end)
  raw_step = Sub (raw_row, log_end)
  raw_low = Max (raw_step, zero)
  raw_clipped = Min (raw_low, last_row)
  raw_behind = Add (raw_clipped, kept)
  raw_from = Where (raw_logged, raw_row, raw_behind)
  raw_index = Unsqueeze (raw_from, twos)
  raw_old = And (raw_logged, old_2d)
  raw_new = Less (raw_step, count)
  raw_stepped = Not (raw_logged)
  raw_real = And (raw_new, raw_stepped)
  raw_any = Or (raw_old, raw_real)
  raw_valid = Unsqueeze (raw_any, twos)
  t_row = Range (zero, width, one)
  t_logged = Less (t_row, replay)
  t_step = Sub (t_row, replay)
  t_low = Max (t_step, zero)
  t_clipped = Min (t_low, last_row)
  t_behind = Add (t_clipped, log)
  t_from = Where (t_logged, t_row, t_behind)
  t_index = Unsqueeze (t_from, twos)
  t_real = Less (t_step, count)
  t_valid = Unsqueeze (t_real, twos)
  kept_row = Range (zero, kept, one)
  kept_far = Add (kept_row, moved_2d)
  kept_from = Min (kept_far, last_raw)
  kept_index = Unsqueeze (kept_from, twos)
  log_row = Range (zero, log, one)
  log_far = Add (log_row, moved_2d)
  log_from = Min (log_far, last_t)
  log_index = Unsqueeze (log_from, twos)
  step_row = Range (zero, row_end, one)
  step_far = Add (step_row, replay)
  step_from = Min (step_far, last_t)
  step_index = Unsqueeze (step_from, twos)
  known_rows = Concat <axis = 1> (conv_rows, x)
  picked = GatherND <batch_dims = 1> (known_rows, raw_index)
  raw = Where (raw_valid, picked, nothing)
  conv_rows_out = GatherND <batch_dims = 1> (raw, kept_index)
  step_gates = Concat <axis = -1> (beta, log_decay)
  known_gates = Concat <axis = 1> (gate_rows, step_gates)
  picked_gates = GatherND <batch_dims = 1> (known_gates, t_index)
  gates = Where (t_valid, picked_gates, nothing)
  gate_rows_out = GatherND <batch_dims = 1> (gates, log_index)
"""
"""Rows from the state's length on, ``raw [B, taps - 1 + W, C]`` and ``gates [B, W, 2 Hv]``, and the logs
of the next step. Until ``known_rows`` lengths alone count, so that all layers share one copy."""


def _convolution(op: GatedDeltaRule) -> str:
    """``mixed [B, W, C]``: each row's convolution with the rows before it, and SiLU."""
    names = ", ".join(f"tap_{j}" for j in range(op.taps))
    text = f"""
  taps_first = Transpose <perm = [1, 0]> (conv_weight)
  {names} = Split <axis = 0, num_outputs = {op.taps}> (taps_first)
  width_1d = Unsqueeze (width, zeros)
"""
    for j in range(op.taps):
        text += f"""
  start_{j} = Constant <value = int64[1] {{{j}}}> ()
  stop_{j} = Add (width_1d, start_{j})
  rows_{j} = Slice (raw, start_{j}, stop_{j}, ones)
  part_{j} = Mul (rows_{j}, tap_{j})
"""
        if j:
            text += f"  sum_{j} = Add ({f'sum_{j - 1}' if j > 1 else 'part_0'}, part_{j})\n"
    return f"""{text}
  slope = Sigmoid (sum_{op.taps - 1})
  mixed = Mul (sum_{op.taps - 1}, slope)
"""


def _heads(op: GatedDeltaRule) -> str:
    """``q, k [NB, B, Hv, 8, dk]``, ``v [NB, B, Hv, 8, dv]``, ``strength, falls [NB, B, Hv, 8]``."""
    values, size = op.num_value_heads, DELTA_BLOCK
    spread = "  qk_all = Identity (qk_heads)\n"
    if op.group > 1:
        spread = """
  qk_single = Unsqueeze (qk_heads, threes)
  qk_spread = Tile (qk_single, group_tiles)
  qk_all = Reshape (qk_spread, spread_shape)
"""
    return f"""
  threes = Constant <value = int64[1] {{3}}> ()
  group_tiles = Constant <value = int64[5] {{1, 1, 1, {op.group}, 1}}> ()
  spread_shape = Constant <value = int64[4] {{0, 0, {2 * values}, {op.key_dim}}}> ()
  qk_shape = Constant <value = int64[4] {{0, 0, {2 * op.num_key_heads}, {op.key_dim}}}> ()
  key_blocks = Constant <value = int64[5] {{0, -1, {size}, {values}, {op.key_dim}}}> ()
  value_blocks = Constant <value = int64[5] {{0, -1, {size}, {values}, {op.value_dim}}}> ()
  gate_blocks = Constant <value = int64[4] {{0, -1, {size}, {values}}}> ()
  sizes = Constant <value = int64[2] {{{2 * op.key_size}, {op.value_size}}}> ()
  pair = Constant <value = int64[2] {{{values}, {values}}}> ()
  query_scale = Constant <value = float {{{op.key_dim**-0.5!r}}}> ()
  qk_flat, v_flat = Split <axis = -1> (mixed, sizes)
  qk_plain = Reshape (qk_flat, qk_shape)
  square = ReduceSumSquare (qk_plain, last_axis)
  square_eps = Add (square, eps)
  length = Sqrt (square_eps)
  qk_heads = Div (qk_plain, length)
{spread}
  q_unit, k_rows = Split <axis = 2> (qk_all, pair)
  q_rows = Mul (q_unit, query_scale)
  q_blocks = Reshape (q_rows, key_blocks)
  k_blocks = Reshape (k_rows, key_blocks)
  v_blocks = Reshape (v_flat, value_blocks)
  q = Transpose <perm = [1, 0, 3, 2, 4]> (q_blocks)
  k = Transpose <perm = [1, 0, 3, 2, 4]> (k_blocks)
  k_t = Transpose <perm = [1, 0, 3, 4, 2]> (k_blocks)
  v = Transpose <perm = [1, 0, 3, 2, 4]> (v_blocks)
  strength_flat, falls_flat = Split <axis = -1> (gates, pair)
  strength_blocks = Reshape (strength_flat, gate_blocks)
  falls_blocks = Reshape (falls_flat, gate_blocks)
  strength_rows = Transpose <perm = [1, 0, 3, 2]> (strength_blocks)
  falls_rows = Transpose <perm = [1, 0, 3, 2]> (falls_blocks)
"""


BLOCKS = """
  row_axis = Constant <value = int64 {3}> ()
  fall = CumSum (falls_rows, row_axis)
  strength = Unsqueeze (strength_rows, last_axis)
  fall_i = Unsqueeze (fall, last_axis)
  fall_row = Unsqueeze (falls_rows, last_axis)
  behind_any = Cast <to = 9> (strict)
  fall_behind = Where (behind_any, fall_row, nothing)
  fall_between = CumSum (fall_behind, row_axis)
  above_any = Cast <to = 9> (above)
  fall_seen = Where (above_any, blocked, fall_between)
  decay_between = Exp (fall_seen)
  decay = Exp (fall_i)
  likeness = MatMul (k, k_t)
  likeness_decayed = Mul (likeness, decay_between)
  likeness_written = Mul (likeness_decayed, strength)
  overlap = Mul (likeness_written, strict)
  negative = Neg (overlap)
  negative_2 = MatMul (negative, negative)
  negative_4 = MatMul (negative_2, negative_2)
  factor_1 = Add (unit, negative)
  factor_2 = Add (unit, negative_2)
  factor_4 = Add (unit, negative_4)
  inverse_2 = MatMul (factor_1, factor_2)
  inverse = MatMul (inverse_2, factor_4)
  v_strong = Mul (v, strength)
  k_reach = Mul (strength, decay)
  k_strong = Mul (k, k_reach)
  values = MatMul (inverse, v_strong)
  readers = MatMul (inverse, k_strong)
  q_decayed = Mul (q, decay)
  probes = Concat <axis = -2> (readers, q_decayed)
  attention = MatMul (q, k_t)
  mixing = Mul (attention, decay_between)
  last_start = Constant <value = int64[1] {LAST}> ()
  last_end = Constant <value = int64[1] {END}> ()
  fall_last = Slice (fall, last_start, last_end, threes)
  fall_left = Slice (fall_between, last_start, last_end, threes)
  decay_row = Exp (fall_left)
  writers = Mul (k_t, decay_row)
  keep_row = Exp (fall_last)
  keep = Unsqueeze (keep_row, last_axis)
""".replace("LAST", str(DELTA_BLOCK - 1)).replace("END", str(DELTA_BLOCK))
"""What of a block does not depend on the state. Its rows write ``values - readers @ S``, where the inverse of
the unit lower triangle ``1 + overlap`` is ``(1 - A)(1 + A²)(1 + A⁴)``, as A to the eighth power is 0. What
falls between two rows is summed from the one to the other: a difference of sums from the block's begin
would lose the digits behind a strong fall."""


COMMITS = """
  fresh_4d = Unsqueeze (fresh, trailing)
  has_moved = Greater (moved, zero)
  begins = And (fresh, runs)
  commits = Or (has_moved, begins)
"""


def _states(op: GatedDeltaRule) -> str:
    """``y_blocks [NB, B, Hv, 8, dv]``, and the states that change ``[commits, Hv, dk, dv]``."""
    heads, size = op.num_value_heads, DELTA_BLOCK
    y = f"float[N,B,{heads},{size},{op.value_dim}]"
    changed = f"float[M,{heads},{op.key_dim},{op.value_dim}]"
    return f"""
{COMMITS}
  commit_row = NonZero (commits)
  commit_index = Transpose <perm = [1, 0]> (commit_row)
  commit_slots = Squeeze (commit_row, zeros)
  one_block = Equal (blocks, one)
  y_blocks, changed = If (one_block) <
    then_branch = within () => ({y} y_one, {changed} changed_one) {{
  probes_one = Squeeze (probes, zeros)
  mixing_one = Squeeze (mixing, zeros)
  values_one = Squeeze (values, zeros)
  found_any = MatMul (probes_one, recurrent)
  found_one = Where (fresh_4d, nothing, found_any)
  read_one, seen_one = Split <axis = 2> (found_one, halves)
  written_one = Sub (values_one, read_one)
  own_one = MatMul (mixing_one, written_one)
  y_4d = Add (seen_one, own_one)
  y_one = Unsqueeze (y_4d, zeros)
  commit_count = Shape <start = 1, end = 2> (commit_row)
  state_size = Constant <value = int64[3] {{{heads}, {op.key_dim}, {op.value_dim}}}> ()
  changed_shape = Concat <axis = 0> (commit_count, state_size)
  changed_one = Expand (nothing, changed_shape)
    }},
    else_branch = across () => ({y} y_all, {changed} changed_all) {{
{_across_blocks(op)}
  changed_all = Gather <axis = 0> (commit_end, commit_slots)
    }}
  >
  recurrent_out = ScatterND (recurrent, commit_index, changed)
"""


def _across_blocks(op: GatedDeltaRule) -> str:
    """``y_all`` of every block, and the state ``commit_end [B, Hv, dk, dv]`` after ``moved`` rows."""
    heads, size = op.num_value_heads, DELTA_BLOCK
    state = f"float[B,{heads},{op.key_dim},{op.value_dim}]"
    return f"""
  go_on = Constant <value = int64 {{1}}> ()
  always = Cast <to = 9> (go_on)
  at_first = Where (fresh_4d, nothing, recurrent)
  state_end, commit_end, y_all = Loop (blocks, always, at_first, at_first) <
    body = next (int64 i, bool c, {state} state_i, {state} commit_i)
      => (bool c_out, {state} state_o, {state} commit_o, float[B,{heads},{size},{op.value_dim}] y_i) {{
  c_out = Identity (c)
  probes_i = Gather <axis = 0> (probes, i)
  mixing_i = Gather <axis = 0> (mixing, i)
  values_i = Gather <axis = 0> (values, i)
  writers_i = Gather <axis = 0> (writers, i)
  keep_i = Gather <axis = 0> (keep, i)
  found_i = MatMul (probes_i, state_i)
  read_i, seen_i = Split <axis = 2> (found_i, halves)
  written_i = Sub (values_i, read_i)
  own_i = MatMul (mixing_i, written_i)
  y_i = Add (seen_i, own_i)
  kept_i = Mul (state_i, keep_i)
  added_i = MatMul (writers_i, written_i)
  state_o = Add (kept_i, added_i)
  end_i = Add (i, one)
  end_row = Mul (end_i, block)
  takes = Equal (moved, end_row)
  takes_4d = Unsqueeze (takes, trailing)
  commit_o = Where (takes_4d, state_o, commit_i)
      }}
    >
"""


def _whole_states(op: GatedDeltaRule) -> str:
    """As ``_states``; the state is written whole, over what was read before."""
    return f"""
{COMMITS}
{_across_blocks(op)}
  y_blocks = Identity (y_all)
  commits_4d = Unsqueeze (commits, trailing)
  recurrent_out = Where (commits_4d, commit_end, recurrent)
"""


def _out(op: GatedDeltaRule) -> str:
    return f"""
  y_shape = Constant <value = int64[3] {{0, -1, {op.value_size}}}> ()
  y_window = Transpose <perm = [1, 0, 3, 2, 4]> (y_blocks)
  y_rows = Reshape (y_window, y_shape)
  y = GatherND <batch_dims = 1> (y_rows, step_index)
"""
