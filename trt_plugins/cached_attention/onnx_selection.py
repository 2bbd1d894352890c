"""The block-sparse parts of the ONNX body: summaries, scores, choice, gather.

Rules and formulas: docs/attention.md. Names that end in ``_used`` cover the blocks in use
(NB = ceil(T / 64)), not the capacity. A row's choice is a mask ``[B, Hkv, n, NB]``; the blocks
that any row chose are gathered once, and each row is masked to its own.
"""

from __future__ import annotations

from selfdraft.trt_plugins.cached_attention.contract import BUDGET_PARTS, CachedAttention


def scatter_index(name: str, place: str, count: str, op: CachedAttention) -> str:
    """ScatterND index ``[B, count, Hkv, 3]`` = (b, h, ``place [B, count]``)."""
    n = name
    return f"""
  {n}_batch_end = Squeeze (batch)
  {n}_b = Range (zero, {n}_batch_end, one)
  {n}_kv_end = Squeeze (kv_count)
  {n}_h = Range (zero, {n}_kv_end, one)
  {n}_b_axes = Constant <value = int64[3] {{1, 2, 3}}> ()
  {n}_h_axes = Constant <value = int64[3] {{0, 1, 3}}> ()
  {n}_s_axes = Constant <value = int64[2] {{2, 3}}> ()
  {n}_b4 = Unsqueeze ({n}_b, {n}_b_axes)
  {n}_h4 = Unsqueeze ({n}_h, {n}_h_axes)
  {n}_s4 = Unsqueeze ({place}, {n}_s_axes)
  {n}_grid = Concat <axis = 0> (batch, {count}, kv_count, ones)
  {n}_b_grid = Expand ({n}_b4, {n}_grid)
  {n}_h_grid = Expand ({n}_h4, {n}_grid)
  {n}_s_grid = Expand ({n}_s4, {n}_grid)
  {n} = Concat <axis = 3> ({n}_b_grid, {n}_h_grid, {n}_s_grid)
"""


def update_summaries(op: CachedAttention) -> str:
    """Recompute the summaries of the block before ``past_len`` and of every block touched.

    infllm_v2 starts one block earlier and reads one block more: its windows reach on.
    """
    reach = 1 if op.selector == "infllm_v2" else 0
    read_blocks = f"""
  reach = Constant <value = int64 {{{reach}}}> ()
  before = Sub (past_len, one)
  before_block = Div (before, block)
  before_start = Sub (before_block, reach)
  first_touched = Max (before_start, zero)
  last_row = Sub (length, one)
  last_kept = Max (last_row, zero)
  last_touched = Div (last_kept, block)
  touched_span = Div (rows, blocks_of)
  touched_extra = Constant <value = int64[1] {{{2 + reach}}}> ()
  touched_count = Add (touched_span, touched_extra)
  touched_end = Squeeze (touched_count, zeros)
  touched_step = Range (zero, touched_end, one)
  first_column = Unsqueeze (first_touched, ones)
  last_column = Unsqueeze (last_touched, ones)
  touched_all = Add (first_column, touched_step)
  touched = Min (touched_all, last_column)
"""
    gather = _gather(op, "touched", "touched_count", "touched", ("k",))
    vectors = _infllm_vectors(op) if reach else _spread_vectors(op)
    return f"""
{read_blocks}
{scatter_index("summary_index", "touched", "touched_count", op)}
{gather}
{vectors}
  summary_rows = Transpose <perm = [0, 2, 1, 3, 4]> (summary_new)
  summary_out = ScatterND (summary, summary_index, summary_rows)
"""


def _gather(op: CachedAttention, ids: str, count: str, prefix: str, names: tuple[str, ...]) -> str:
    """``{prefix}_{k|v} [B, Hkv, count, 64, d]``: blocks ``ids`` of the caches.

    ``ids`` is ``[B, count]`` (the same for all heads) or, with prefix ``sparse``,
    ``[B, Hkv, count]``.
    """
    shared = prefix != "sparse"
    text = f"""
  {prefix}_gather_shape = Concat <axis = 0> (batch, kv_count, {count}, ones)
"""
    axes = "{1, 3}" if shared else "{3}"
    size = 2 if shared else 1
    text += f"""
  {prefix}_gather_axes = Constant <value = int64[{size}] {axes}> ()
  {prefix}_ids_4d = Unsqueeze ({ids}, {prefix}_gather_axes)
  {prefix}_gather_ids = Expand ({prefix}_ids_4d, {prefix}_gather_shape)
  {prefix}_cache_shape = Constant <value = int64[5] {{0, 0, -1, {op.block}, {op.head_dim}}}> ()
"""
    for name in names:
        result = f"{prefix}_{name}"
        raw = f"{result}_codes" if op.kv_dtype == "int8" else result
        text += f"""
  {result}_blocks = Reshape ({name}_cache_out, {prefix}_cache_shape)
  {raw} = GatherND <batch_dims = 2> ({result}_blocks, {prefix}_gather_ids)
"""
        if op.kv_dtype == "int8":
            text += f"""
  {result}_scale_shape = Constant <value = int64[4] {{0, 0, -1, {op.block}}}> ()
  {result}_scale_blocks = Reshape ({name}_scale_out, {result}_scale_shape)
  {result}_scale16 = GatherND <batch_dims = 2> ({result}_scale_blocks, {prefix}_gather_ids)
  {result}_scale32 = Cast <to = 1> ({result}_scale16)
  {result}_scale5 = Unsqueeze ({result}_scale32, minus)
  {result}_float = Cast <to = 1> ({raw})
  {result} = Mul ({result}_float, {result}_scale5)
"""
    return text


def _spread_vectors(op: CachedAttention) -> str:
    """summary_new ``[B, Hkv, R, 2, d]``: centre and spread of the touched blocks."""
    if op.selector == "mean_std":
        return """
  token_axis = Constant <value = int64[1] {3}> ()
  centre = ReduceMean (touched_k, token_axis)
  apart = Sub (touched_k, centre)
  squared = Mul (apart, apart)
  variance = ReduceMean (squared, token_axis)
  spread = Sqrt (variance)
  summary_new = Concat <axis = 3> (centre, spread)
"""
    return """
  token_axis = Constant <value = int64[1] {3}> ()
  highest = ReduceMax (touched_k, token_axis)
  lowest = ReduceMin (touched_k, token_axis)
  half = Constant <value = float {0.5}> ()
  sum = Add (highest, lowest)
  centre = Mul (sum, half)
  difference = Sub (highest, lowest)
  spread = Mul (difference, half)
  summary_new = Concat <axis = 3> (centre, spread)
"""


def _infllm_vectors(op: CachedAttention) -> str:
    """summary_new ``[B, Hkv, R, 5, d]``: four C1 and one C2 window means of each block.

    A window is an average of 16-token means; those of the block behind come from ``next_k``,
    gathered beside (past the end of the sequence nothing reads the result).
    """
    gather = _gather(op, "next_touched", "touched_count", "next", ("k",))
    return f"""
  block_count = Div (capacity, blocks_of)
  last_block = Sub (block_count, ones)
  following = Add (touched, one)
  next_touched = Min (following, last_block)
{gather}
  pair = Concat <axis = 3> (touched_k, next_k)
  strides_shape = Constant <value = int64[6] {{0, 0, 0, 8, 16, {op.head_dim}}}> ()
  strides = Reshape (pair, strides_shape)
  stride_axis = Constant <value = int64[1] {{4}}> ()
  stride_means = ReduceMean <keepdims = 0> (strides, stride_axis)
  axis3 = Constant <value = int64[1] {{3}}> ()
  four = Constant <value = int64[1] {{4}}> ()
  five = Constant <value = int64[1] {{5}}> ()
  first_means = Slice (stride_means, zeros, four, axis3)
  second_means = Slice (stride_means, ones, five, axis3)
  window_sum = Add (first_means, second_means)
  half = Constant <value = float {{0.5}}> ()
  fine = Mul (window_sum, half)
  coarse = ReduceMean (stride_means, axis3)
  summary_new = Concat <axis = 3> (fine, coarse)
"""


def dense_condition(op: CachedAttention) -> str:
    """``dense``: every row attends to all, or the budget covers the longest sequence."""
    covered = 0 if op.selector == "window" and op.sliding_window else _seen_blocks(op) * op.block
    return f"""
  all_dense = ReduceMin <keepdims = 0> (attend_all)
  wants_all = Equal (all_dense, one)
  covered = Constant <value = int64 {{{covered}}}> ()
  short = LessOrEqual (total, covered)
  dense = Or (wants_all, short)
"""


def _seen_blocks(op: CachedAttention) -> int:
    """Blocks that every row sees at least, as far as its sequence has them."""
    window = op.sinks + op.local_blocks
    return window if op.selector == "window" else max(window, -(-op.budget_tokens // op.block))


def visible_blocks(op: CachedAttention) -> str:
    """Masks ``[B, 1, n, NB]`` from lengths alone: ``forced`` and ``selectable``.

    Padded rows stand at the last real row's position, so that they add no block of their own.
    """
    return f"""
  used_up = Constant <value = int64 {{63}}> ()
  total_up = Add (total, used_up)
  used_blocks = Div (total_up, block)
  sparse_blocks = Where (dense, one, used_blocks)
  sparse_blocks_1d = Unsqueeze (sparse_blocks, zeros)
  block_id = Range (zero, sparse_blocks, one)
  last_position = Sub (length, one)
  last_clamped = Max (last_position, zero)
  last_row_position = Unsqueeze (last_clamped, ones)
  row_position = Min (position, last_row_position)
  own_block = Div (row_position, block)
  own_axes = Constant <value = int64[2] {{1, 3}}> ()
  own = Unsqueeze (own_block, own_axes)
  sinks = Constant <value = int64 {{{op.sinks}}}> ()
  local = Constant <value = int64 {{{op.local_blocks}}}> ()
  before_local = Sub (own, local)
  in_sinks_blocks = Less (block_id, sinks)
  in_local = Greater (block_id, before_local)
  dense_slot = Equal (attend_all, one)
  dense_axes = Constant <value = int64[3] {{1, 2, 3}}> ()
  dense_slot_4d = Unsqueeze (dense_slot, dense_axes)
  sink_or_local = Or (in_sinks_blocks, in_local)
  wanted = Or (sink_or_local, dense_slot_4d)
  reached = LessOrEqual (block_id, own)
  forced = And (wanted, reached)
  not_sink = Not (in_sinks_blocks)
  not_local = Not (in_local)
  selectable_any = And (not_sink, not_local)
  real_axes = Constant <value = int64[2] {{1, 3}}> ()
  real_4d = Unsqueeze (real, real_axes)
  sparse_slot_4d = Not (dense_slot_4d)
  choosing = And (real_4d, sparse_slot_4d)
  selectable = And (selectable_any, choosing)
{_chosen_count(op)}
"""


def _chosen_count(op: CachedAttention) -> str:
    """``chosen [B, 1, n, 1]`` blocks each row chooses, and the most of any row."""
    fixed = -(-op.budget_tokens // op.block)
    share = f"  budget = Constant <value = int64 {{{fixed}}}> ()\n"
    if op.budget_parts:
        unit = BUDGET_PARTS * op.block
        share = f"""
  fixed_budget = Constant <value = int64 {{{fixed}}}> ()
  parts = Constant <value = int64 {{{op.budget_parts}}}> ()
  share_unit = Constant <value = int64 {{{unit}}}> ()
  share_up = Constant <value = int64 {{{unit - 1}}}> ()
  row_length = Add (row_position, one)
  row_parts = Mul (row_length, parts)
  row_parts_up = Add (row_parts, share_up)
  share_blocks = Div (row_parts_up, share_unit)
  budget = Max (share_blocks, fixed_budget)
"""
    return f"""
{share}
  window_blocks = Constant <value = int64 {{{op.sinks + op.local_blocks}}}> ()
  budget_rest = Sub (budget, window_blocks)
  chosen_rows = Max (budget_rest, zero)
  chosen_shape = Concat <axis = 0> (batch, rows)
  chosen_full = Expand (chosen_rows, chosen_shape)
  chosen = Unsqueeze (chosen_full, own_axes)
  most_chosen = ReduceMax <keepdims = 0> (chosen_rows)
  choice_limit = Min (most_chosen, sparse_blocks)
  choice_count = Unsqueeze (choice_limit, zeros)
"""


def choose_blocks(op: CachedAttention) -> str:
    """``seen [B, Hkv, n, NB]`` float 0/1: the blocks of each row and kv head."""
    if op.selector == "window" or _never_chooses(op):
        return """
  forced_float = Cast <to = 1> (forced)
  seen_shape = Concat <axis = 0> (batch, kv_count, rows, sparse_blocks_1d)
  seen = Expand (forced_float, seen_shape)
"""
    scores = _infllm_scores(op) if op.selector == "infllm_v2" else _spread_scores(op)
    return f"""
{scores}
  excluded = Constant <value = float {{-1.0}}> ()
  unordered = Constant <value = float {{-0.5}}> ()
  score_is_nan = IsNaN (block_score)
  score_known = Where (score_is_nan, unordered, block_score)
  ranked = Where (selectable, score_known, excluded)
  best, best_ids = TopK <axis = -1, largest = 1, sorted = 1> (ranked, choice_count)
  rank = Range (zero, choice_limit, one)
  in_budget = Less (rank, chosen)
  eligible = Greater (best, excluded)
  taken = And (in_budget, eligible)
  taken_float = Cast <to = 1> (taken)
  forced_float = Cast <to = 1> (forced)
  seen_shape = Concat <axis = 0> (batch, kv_count, rows, sparse_blocks_1d)
  forced_full = Expand (forced_float, seen_shape)
  seen = ScatterElements <axis = 3, reduction = "max"> (forced_full, best_ids, taken_float)
"""


def _never_chooses(op: CachedAttention) -> bool:
    return not op.budget_parts and _seen_blocks(op) == op.sinks + op.local_blocks


def _spread_scores(op: CachedAttention) -> str:
    """``block_score [B, Hkv, n, NB]``: softmax over blocks of each head, summed over heads."""
    weight = op.spread * op.scale
    return f"""
  summary_used = Slice (summary_out, zeros, sparse_blocks_1d, twos)
  feature_shape = Constant <value = int64[4] {{0, 0, 0, {2 * op.head_dim}}}> ()
  features = Reshape (summary_used, feature_shape)
  features_t = Transpose <perm = [0, 1, 3, 2]> (features)
  q_scaled = Mul (q_flat, scale)
  q_magnitude = Abs (q_flat)
  spread_weight = Constant <value = float {{{weight!r}}}> ()
  q_spread = Mul (q_magnitude, spread_weight)
  q_features = Concat <axis = 3> (q_scaled, q_spread)
  head_raw = MatMul (q_features, features_t)
  head_shape = Concat <axis = 0> (batch, kv_count, group, rows, sparse_blocks_1d)
  head_scores = Reshape (head_raw, head_shape)
  head_axis = Constant <value = int64[1] {{2}}> ()
  selectable_5d = Unsqueeze (selectable, head_axis)
  lowest_float = Constant <value = float {{-3.0e38}}> ()
  head_masked = Where (selectable_5d, head_scores, lowest_float)
  head_share = Softmax <axis = -1> (head_masked)
  block_score = ReduceSum <keepdims = 0> (head_share, head_axis)
"""


def _infllm_scores(op: CachedAttention) -> str:
    """``block_score [B, Hkv, n, NB]`` of MiniCPM4: window scores, pooled by block."""
    d = op.head_dim
    return f"""
  summary_used = Slice (summary_out, zeros, sparse_blocks_1d, twos)
  part_axis = Constant <value = int64[1] {{3}}> ()
  fours = Constant <value = int64[1] {{4}}> ()
  fives = Constant <value = int64[1] {{5}}> ()
  fine_used = Slice (summary_used, zeros, fours, part_axis)
  coarse_used = Slice (summary_used, fours, fives, part_axis)
  key_shape = Constant <value = int64[4] {{0, 0, -1, {d}}}> ()
  fine_keys = Reshape (fine_used, key_shape)
  coarse_keys = Reshape (coarse_used, key_shape)
  fine_keys_t = Transpose <perm = [0, 1, 3, 2]> (fine_keys)
  coarse_keys_t = Transpose <perm = [0, 1, 3, 2]> (coarse_keys)
  q_scaled = Mul (q_flat, scale)
  fine_raw = MatMul (q_scaled, fine_keys_t)
  coarse_raw = MatMul (q_scaled, coarse_keys_t)
  head_shape = Concat <axis = 0> (batch, kv_count, group, rows, minus)
  fine_logits = Reshape (fine_raw, head_shape)
  coarse_logits = Reshape (coarse_raw, head_shape)
  row_axes = Constant <value = int64[3] {{1, 2, 4}}> ()
  row_position_5d = Unsqueeze (row_position, row_axes)
  sixteen = Constant <value = int64 {{16}}> ()
  four_windows = Constant <value = int64 {{4}}> ()
  window_blocks_count = Mul (sparse_blocks, four_windows)
  window_id = Range (zero, window_blocks_count, one)
  fine_start = Mul (window_id, sixteen)
  fine_reach = Constant <value = int64 {{31}}> ()
  fine_end = Add (fine_start, fine_reach)
  fine_complete = LessOrEqual (fine_end, row_position_5d)
  coarse_start = Mul (block_id, block)
  coarse_reach = Constant <value = int64 {{127}}> ()
  coarse_end = Add (coarse_start, coarse_reach)
  coarse_complete = LessOrEqual (coarse_end, row_position_5d)
  lowest_float = Constant <value = float {{-3.0e38}}> ()
  fine_masked = Where (fine_complete, fine_logits, lowest_float)
  coarse_masked = Where (coarse_complete, coarse_logits, lowest_float)
  last_axis = Constant <value = int64[1] {{4}}> ()
  fine_norm = ReduceLogSumExp (fine_masked, last_axis)
  coarse_norm = ReduceLogSumExp (coarse_masked, last_axis)
  first_coarse = Constant <value = int64 {{127}}> ()
  has_coarse = GreaterOrEqual (row_position_5d, first_coarse)
  norm = Where (has_coarse, coarse_norm, fine_norm)
  fine_relative = Sub (fine_masked, norm)
  fine_share = Exp (fine_relative)
  head_axis = Constant <value = int64[1] {{2}}> ()
  window_score = ReduceSum <keepdims = 0> (fine_share, head_axis)
  window_shape = Concat <axis = 0> (batch, kv_count, rows, minus, fours)
  window_score_5d = Reshape (window_score, window_shape)
  inside = ReduceMax <keepdims = 0> (window_score_5d, minus)
  three = Constant <value = int64[1] {{3}}> ()
  into_next = Slice (window_score_5d, three, fours, last_axis)
  into_next_4d = Squeeze (into_next, last_axis)
  pads = Constant <value = int64[8] {{0, 0, 0, 1, 0, 0, 0, -1}}> ()
  shifted = Pad (into_next_4d, pads)
  block_score = Max (inside, shifted)
"""


def gather_blocks(op: CachedAttention) -> str:
    """Keys, values and bias of the union of all rows' blocks, each gathered once."""
    gather = _gather(op, "union_ids", "union_count", "sparse", ("k", "v"))
    return f"""
  row_axis = Constant <value = int64[1] {{2}}> ()
  union = ReduceMax <keepdims = 0> (seen, row_axis)
  union_sizes = ReduceSum <keepdims = 0> (union, minus)
  union_most = ReduceMax <keepdims = 0> (union_sizes)
  union_int = Cast <to = 7> (union_most)
  union_count = Unsqueeze (union_int, zeros)
  union_flags, union_any = TopK <axis = -1, largest = 1, sorted = 1> (union, union_count)
  in_union = Greater (union_flags, no_bias)
  union_first = Slice (union_any, zeros, ones, minus)
  union_ids = Where (in_union, union_any, union_first)
{gather}
  flat_keys = Constant <value = int64[4] {{0, 0, -1, {op.head_dim}}}> ()
  sparse_keys = Reshape (sparse_k, flat_keys)
  sparse_values = Reshape (sparse_v, flat_keys)
  mask_ids_shape = Concat <axis = 0> (batch, kv_count, rows, union_count)
  mask_ids_4d = Unsqueeze (union_ids, row_axis)
  mask_ids = Expand (mask_ids_4d, mask_ids_shape)
  block_seen = GatherElements <axis = 3> (seen, mask_ids)
  key_offset_end = Constant <value = int64 {{{op.block}}}> ()
  key_offset = Range (zero, key_offset_end, one)
  block_start = Mul (mask_ids_4d, block)
  block_start_5d = Unsqueeze (block_start, minus)
  key_5d = Add (block_start_5d, key_offset)
  causal_axes = Constant <value = int64[3] {{1, 3, 4}}> ()
  causal_position = Unsqueeze (position, causal_axes)
  causal = LessOrEqual (key_5d, causal_position)
{_token_window(op)}
  block_seen_5d = Unsqueeze (block_seen, minus)
  block_flag = Greater (block_seen_5d, no_bias)
  union_axes = Constant <value = int64[2] {{2, 4}}> ()
  in_union_5d = Unsqueeze (in_union, union_axes)
  block_counts = And (block_flag, in_union_5d)
  token_seen = And (block_counts, token_visible)
  token_bias = Where (token_seen, no_bias, blocked)
  sparse_total = Mul (union_count, blocks_of)
  bias_shape = Concat <axis = 0> (batch, kv_count, ones, rows, sparse_total)
  sparse_bias = Reshape (token_bias, bias_shape)
"""


def _token_window(op: CachedAttention) -> str:
    if not op.sliding_window:
        return "\n  token_visible = Identity (causal)\n"
    return f"""
  token_window = Constant <value = int64 {{{op.sliding_window}}}> ()
  token_oldest = Sub (causal_position, token_window)
  token_recent = Greater (key_5d, token_oldest)
  sink_tokens = Constant <value = int64 {{{op.sinks * op.block}}}> ()
  token_in_sinks = Less (key_5d, sink_tokens)
  token_near = Or (token_recent, token_in_sinks)
  token_visible = And (causal, token_near)
"""
