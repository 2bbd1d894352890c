"""ONNX text: the list of blocks that each row sees, and how its chosen part is found.

Rules and formulas: docs/attention.md. A row's list has its sinks, its local window from its own block
back, then its chosen blocks, best first (in id order where the budget covers the row). Order, length and validity of the
list follow from the row alone, up to invalid entries at the end, which count nothing: with every
product over a list made block by block (``onnx_rows.py``) a row gets bit for bit the same result
alone as together with others.

Invalid entries repeat the row's own block. Lists have a multiple of ``LIST_STEP`` entries, since
matrix products may add that many rows of a sum at a time.
"""

from __future__ import annotations

from collections.abc import Callable

from selfdraft.trt_plugins.cached_attention.contract import BUDGET_PARTS, CachedAttention

LIST_STEP = 4
SCORED_STEP = 64
"""Blocks are scored in multiples of this, for the sums of a softmax come in strides."""


def scores_blocks(op: CachedAttention) -> bool:
    """Whether any row can have more selectable blocks than its budget leaves it."""
    return bool(op.summary_vectors) and (bool(op.budget_parts) or _fixed_choice(op) > 0)


def _fixed_choice(op: CachedAttention) -> int:
    """Blocks that the budget in tokens leaves to choose."""
    if op.selector == "window":
        return 0
    return max(-(-op.budget_tokens // op.block) - op.sinks - op.local_blocks, 0)


def row_lists(op: CachedAttention) -> str:
    """What lengths alone say of the lists; padded rows stand at the last real row's position.

    ``list_valid [B, n, L]``, ``forced_full [B, Hkv, n, sinks + local]`` (see ``_forced``), ``rank [C]`` and
    ``identity_ids [B, n, C]`` for the chosen part, ``starved``: some row has to choose.
    """
    forced = op.sinks + op.local_blocks
    return f"""
  used_up = Constant <value = int64 {{63}}> ()
  total_up = Add (total, used_up)
  used_blocks = Div (total_up, block)
  last_position = Sub (length, one)
  last_clamped = Max (last_position, zero)
  last_row_position = Unsqueeze (last_clamped, ones)
  row_position = Min (position, last_row_position)
  own = Div (row_position, block)
  own_3d = Unsqueeze (own, twos)
  sinks = Constant <value = int64 {{{op.sinks}}}> ()
  local_most = Constant <value = int64 {{{op.local_blocks}}}> ()
  local_count = Min (local_most, used_blocks)
  local_back = Range (zero, local_count, one)
  local_ids = Sub (own_3d, local_back)
  local_valid = GreaterOrEqual (local_ids, sinks)
{_forced(op)}
  before_window = Constant <value = int64 {{{forced - 1}}}> ()
  candidates_signed = Sub (own, before_window)
  candidates = Max (candidates_signed, zero)
{allowed(op)}
  taken = Min (candidates, allowed)
  most_taken = ReduceMax <keepdims = 0> (taken)
  list_step = Constant <value = int64 {{{LIST_STEP}}}> ()
  listed = Add (forced_count, most_taken)
  over = Neg (listed)
  fill = Mod (over, list_step)
  rank_wanted = Add (most_taken, fill)
  capacity_count = Squeeze (capacity_blocks, zeros)
  rank_end = Min (rank_wanted, capacity_count)
  rank = Range (zero, rank_end, one)
  taken_3d = Unsqueeze (taken, twos)
  rank_valid = Less (rank, taken_3d)
  list_valid = Concat <axis = 2> (forced_valid, rank_valid)
  identity_row = Add (rank, sinks)
  identity_ids = Where (rank_valid, identity_row, own_3d)
  list_valid_4d = Unsqueeze (list_valid, ones)
  own_4d = Unsqueeze (own_3d, ones)
  forced_shape = Concat <axis = 0> (batch, kv_count, rows, ones)
  forced_4d = Unsqueeze (forced_ids, ones)
  forced_full = Expand (forced_4d, forced_shape)
  free = Greater (candidates, allowed)
  free_int = Cast <to = 7> (free)
  most_free = ReduceMax <keepdims = 0> (free_int)
  starved = Equal (most_free, one)
"""


def _forced(op: CachedAttention) -> str:
    """``forced_ids`` and ``forced_valid [B, n, sinks + local]``, as many as the sequences have.

    Where these are fewer than the attributes say, no row of the step chooses any.
    """
    local = "  local_safe = Where (local_valid, local_ids, own_3d)\n"
    if not op.sinks:
        return f"""
{local}
  forced_ids = Identity (local_safe)
  forced_valid = Identity (local_valid)
  forced_count = Identity (local_count)
"""
    return f"""
{local}
  sink_count = Min (sinks, used_blocks)
  sink_ids = Range (zero, sink_count, one)
  sink_valid = LessOrEqual (sink_ids, own_3d)
  sink_safe = Where (sink_valid, sink_ids, own_3d)
  forced_ids = Concat <axis = 2> (sink_safe, local_safe)
  forced_valid = Concat <axis = 2> (sink_valid, local_valid)
  forced_count = Add (sink_count, local_count)
"""


def allowed(op: CachedAttention) -> str:
    """``allowed [B, n]``: blocks that each row may choose; all of them where a slot is dense."""
    fixed = -(-op.budget_tokens // op.block)
    share = f"  choice = Constant <value = int64 {{{_fixed_choice(op)}}}> ()\n"
    if op.budget_parts and op.selector != "window":
        unit = BUDGET_PARTS * op.block
        share = f"""
  fixed_budget = Constant <value = int64 {{{fixed}}}> ()
  parts = Constant <value = int64 {{{op.budget_parts}}}> ()
  share_unit = Constant <value = int64 {{{unit}}}> ()
  share_up = Constant <value = int64 {{{unit - 1}}}> ()
  row_length = Add (row_position, one)
  share_parts = Mul (row_length, parts)
  share_parts_up = Add (share_parts, share_up)
  share_blocks = Div (share_parts_up, share_unit)
  budget = Max (share_blocks, fixed_budget)
  window_blocks = Constant <value = int64 {{{op.sinks + op.local_blocks}}}> ()
  budget_rest = Sub (budget, window_blocks)
  choice = Max (budget_rest, zero)
"""
    return f"""
{share}
  dense_slot = Equal (attend_all, one)
  dense_slot_2d = Unsqueeze (dense_slot, ones)
  allowed = Where (dense_slot_2d, used_blocks, choice)
"""


def scored_blocks(op: CachedAttention) -> str:
    """``[B, 1, n, NB]`` from lengths alone: which blocks a row may take, and how they rank.

    ``use_score`` where the score decides; elsewhere ``fixed_rank`` does: by id for rows that take
    all they may, below everything for what they may not. ``NB`` is 1 where nothing is scored.
    """
    return f"""
  not_dense = Not (dense)
  any_chosen = Greater (most_taken, zero)
  may_choose = And (starved, any_chosen)
  choosing = And (may_choose, not_dense)
  scored_step = Constant <value = int64 {{{SCORED_STEP}}}> ()
  used_more = Add (used_blocks, used_up)
  used_strides = Div (used_more, scored_step)
  used_padded = Mul (used_strides, scored_step)
  used_capped = Min (used_padded, capacity_count)
  num_scored = Where (choosing, used_capped, one)
  num_scored_1d = Unsqueeze (num_scored, zeros)
  three = Constant <value = int64 {{3}}> ()
  thrice_scored = Mul (num_scored, three)
  nearly_full = LessOrEqual (capacity_count, thrice_scored)
  block_id = Range (zero, num_scored, one)
  scored_axes = Constant <value = int64[2] {{1, 3}}> ()
  own_column = Unsqueeze (own, scored_axes)
  window_start = Sub (own_column, local_most)
  behind_sinks = GreaterOrEqual (block_id, sinks)
  before_local = LessOrEqual (block_id, window_start)
  selectable = And (behind_sinks, before_local)
  free_4d = Unsqueeze (free, scored_axes)
  use_score = And (selectable, free_4d)
  high = Constant <value = float {{8388608.0}}> ()
  excluded = Constant <value = float {{-1.0}}> ()
  unordered = Constant <value = float {{-0.5}}> ()
  block_number = Cast <to = 1> (block_id)
  by_id = Sub (high, block_number)
  fixed_rank = Where (selectable, by_id, excluded)
  choice_count = Unsqueeze (rank_end, zeros)
"""


def list_blocks(op: CachedAttention) -> str:
    """``list_ids [B, Hkv, n, L]``: the list of each row and kv head."""
    identity = """
  identity_4d = Unsqueeze (identity_ids, ones)
  identity_shape = Concat <axis = 0> (batch, kv_count, rows, ones)
"""
    if not scores_blocks(op):
        chosen = f"{identity}\n  chosen_ids = Expand (identity_4d, identity_shape)\n"
    else:
        chosen = f"""
{identity}
  chosen_ids = If (choosing) <
    then_branch = by_score () => (int64[B,H,n,C] best_ids) {{
{block_logits(op, _summary_product)}
{block_scores(op)}
  score_is_nan = IsNaN (block_score)
  score_known = Where (score_is_nan, unordered, block_score)
  ranked = Where (use_score, score_known, fixed_rank)
  best, best_ids = TopK <axis = -1, largest = 1, sorted = 1> (ranked, choice_count)
    }},
    else_branch = by_id () => (int64[B,H,n,C] all_ids) {{
  all_ids = Expand (identity_4d, identity_shape)
    }}
  >
"""
    return f"""
{chosen}
  list_all = Concat <axis = 3> (forced_full, chosen_ids)
  list_ids = Where (list_valid_4d, list_all, own_4d)
"""


Product = Callable[[str, int, int], str]
"""Text for ``head_raw [B, Hkv, G n, NB per_block]``: (queries, per_block, width of a summary row)."""


def block_logits(op: CachedAttention, product: Product) -> str:
    """``head_raw``: the queries against the vectors of every scored block."""
    if op.selector == "infllm_v2":
        return _scoring_queries(op) + product("q_scored", op.summary_vectors, op.head_dim)
    spread = "  q_spread = Identity (q_magnitude)\n"
    if op.spread != 1.0:
        spread = f"""
  spread_weight = Constant <value = float {{{op.spread!r}}}> ()
  q_spread = Mul (q_magnitude, spread_weight)
"""
    return f"""
{_scoring_queries(op)}
  q_magnitude = Abs (q_scored)
{spread}
  q_features = Concat <axis = 3> (q_scored, q_spread)
{product("q_features", 1, 2 * op.head_dim)}
"""


def block_scores(op: CachedAttention) -> str:
    """``block_score [B, Hkv, n, NB]`` from ``head_raw``."""
    return _INFLLM_SCORES if op.selector == "infllm_v2" else _SPREAD_SCORES


_SPREAD_SCORES = """
  head_shape = Concat <axis = 0> (batch, kv_count, minus, rows, num_scored_1d)
  head_scores = Reshape (head_raw, head_shape)
  head_axis = Constant <value = int64[1] {2}> ()
  selectable_5d = Unsqueeze (selectable, head_axis)
  lowest_float = Constant <value = float {-3.0e38}> ()
  head_masked = Where (selectable_5d, head_scores, lowest_float)
  head_share = Softmax <axis = -1> (head_masked)
  block_score = ReduceSum <keepdims = 0> (head_share, head_axis)
"""


def _scoring_queries(op: CachedAttention) -> str:
    """``q_scored [B, Hkv, G n, d]``; a group of one is doubled, which doubles all its scores.

    A product of one row rounds otherwise than one of several.
    """
    if op.group > 1:
        return "\n  q_scored = Identity (q_flat)\n"
    return "\n  q_scored = Concat <axis = 2> (q_flat, q_flat)\n"


def _summary_product(queries: str, per_block: int, width: int) -> str:
    """``head_raw [B, Hkv, G n, NB per_block]`` = ``queries`` times the summaries in use.

    Those in use are copied out of the state first, unless they fill a third of it or more: then
    the product with all of it reads less.
    """
    return f"""
  summary_width = Constant <value = int64[4] {{0, 0, -1, {width}}}> ()
  summary_rows_all = Reshape (summary_out, summary_width)
  per_block = Constant <value = int64[1] {{{per_block}}}> ()
  scored_rows = Mul (num_scored_1d, per_block)
  head_raw = If (nearly_full) <
    then_branch = with_all () => (float[B,H,G,N] raw_of_all) {{
  all_float = Cast <to = 1> (summary_rows_all)
  all_t = Transpose <perm = [0, 1, 3, 2]> (all_float)
  raw_whole = MatMul ({queries}, all_t)
  raw_of_all = Slice (raw_whole, zeros, scored_rows, threes)
    }},
    else_branch = with_used () => (float[B,H,G,N] raw_of_used) {{
  summary_used = Slice (summary_rows_all, zeros, scored_rows, twos)
  used_float = Cast <to = 1> (summary_used)
  used_t = Transpose <perm = [0, 1, 3, 2]> (used_float)
  raw_of_used = MatMul ({queries}, used_t)
    }}
  >
"""


# MiniCPM4: window scores, pooled by block.
_INFLLM_SCORES = """
  fours = Constant <value = int64[1] {4}> ()
  fives = Constant <value = int64[1] {5}> ()
  last_axis = Constant <value = int64[1] {4}> ()
  part_axis = Constant <value = int64[1] {5}> ()
  vector_shape = Concat <axis = 0> (batch, kv_count, minus, rows, num_scored_1d, fives)
  vector_logits = Reshape (head_raw, vector_shape)
  fine_parts = Slice (vector_logits, zeros, fours, part_axis)
  coarse_parts = Slice (vector_logits, fours, fives, part_axis)
  head_shape = Constant <value = int64[5] {0, 0, 0, 0, -1}> ()
  fine_logits = Reshape (fine_parts, head_shape)
  coarse_logits = Reshape (coarse_parts, head_shape)
  row_axes = Constant <value = int64[3] {1, 2, 4}> ()
  row_position_5d = Unsqueeze (row_position, row_axes)
  sixteen = Constant <value = int64 {16}> ()
  four_windows = Constant <value = int64 {4}> ()
  window_blocks_count = Mul (num_scored, four_windows)
  window_id = Range (zero, window_blocks_count, one)
  fine_start = Mul (window_id, sixteen)
  fine_reach = Constant <value = int64 {31}> ()
  fine_end = Add (fine_start, fine_reach)
  fine_complete = LessOrEqual (fine_end, row_position_5d)
  coarse_start = Mul (block_id, block)
  coarse_reach = Constant <value = int64 {127}> ()
  coarse_end = Add (coarse_start, coarse_reach)
  coarse_complete = LessOrEqual (coarse_end, row_position_5d)
  lowest_float = Constant <value = float {-3.0e38}> ()
  fine_masked = Where (fine_complete, fine_logits, lowest_float)
  coarse_masked = Where (coarse_complete, coarse_logits, lowest_float)
  fine_norm = ReduceLogSumExp (fine_masked, last_axis)
  coarse_norm = ReduceLogSumExp (coarse_masked, last_axis)
  first_coarse = Constant <value = int64 {127}> ()
  has_coarse = GreaterOrEqual (row_position_5d, first_coarse)
  norm = Where (has_coarse, coarse_norm, fine_norm)
  fine_relative = Sub (fine_masked, norm)
  fine_share = Exp (fine_relative)
  head_axis = Constant <value = int64[1] {2}> ()
  window_score = ReduceSum <keepdims = 0> (fine_share, head_axis)
  window_shape = Concat <axis = 0> (batch, kv_count, rows, minus, fours)
  window_score_5d = Reshape (window_score, window_shape)
  inside = ReduceMax <keepdims = 0> (window_score_5d, minus)
  threes_1d = Constant <value = int64[1] {3}> ()
  into_next = Slice (window_score_5d, threes_1d, fours, last_axis)
  into_next_4d = Squeeze (into_next, last_axis)
  pads = Constant <value = int64[8] {0, 0, 0, 1, 0, 0, 0, -1}> ()
  shifted = Pad (into_next_4d, pads)
  block_score = Max (inside, shifted)
"""
