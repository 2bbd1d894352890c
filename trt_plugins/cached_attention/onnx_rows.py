"""ONNX text: attention of each row over its own list of blocks.

Products run block by block, and each row adds the parts of its list in the list's order. So it
makes no difference whether a row's blocks are gathered for it alone (``one_row``) or with those of
the rows beside it (``many_rows``), each block once: the result is the same to the bit where the
engine's matrix products give a row the same result among others. Products of one row do not: a
group of one is doubled where it would be alone.
"""

from __future__ import annotations

from selfdraft.trt_plugins.cached_attention.contract import CachedAttention
from selfdraft.trt_plugins.cached_attention.onnx_selection import scores_blocks
from selfdraft.trt_plugins.cached_attention.onnx_summaries import gather_blocks

LONG_LIST = 16_384
"""Tokens of a list from which the sum of a softmax is formed once more, block by block: the
engine's own adds up to a fp32 error of 2e-5 (relative) at 131,072 tokens."""
LONG_SHARE = 1 / 8
"""Budget share from which lists are taken for long: that of 131,072 tokens."""


def row_masks(op: CachedAttention) -> str:
    """From lengths alone: ``list_flag [B, 1, n, L]`` 0/1, the bias unless it depends on the choice.

    Chosen blocks lie wholly before their row, so that any of them will do to say what is visible,
    unless tokens leave a sliding window.
    """
    bias = ""
    if not _bias_by_choice(op):
        bias = f"""
  shown_ids = Concat <axis = 2> (forced_ids, identity_ids)
  shown_ids_4d = Unsqueeze (shown_ids, ones)
{_token_bias(op, "shown_ids_4d")}
"""
    return f"""
  list_flag = Cast <to = 1> (list_valid_4d)
  list_int = Cast <to = 7> (list_valid)
  list_sizes = ReduceSum <keepdims = 0> (list_int, twos)
  list_most = ReduceMax <keepdims = 0> (list_sizes)
{bias}
{_shared_of_many_rows(op)}
"""


def _shared_of_many_rows(op: CachedAttention) -> str:
    """Shapes, zeros and counts of ``_many_rows`` that lengths decide: here all layers share them."""
    bias = "" if _bias_by_choice(op) else "  list_bias = Unsqueeze (token_bias, twos)\n"
    return f"""
  listed_blocks = Where (dense, one, used_blocks)
  listed_blocks_1d = Unsqueeze (listed_blocks, zeros)
  seen_shape = Concat <axis = 0> (batch, kv_count, rows, listed_blocks_1d)
  seen_none = Expand (no_bias, seen_shape)
  no_place_shape = Concat <axis = 0> (batch, kv_count, listed_blocks_1d)
  no_place = Expand (zero, no_place_shape)
  list_size_1d = Shape <start = 2, end = 3> (list_valid)
  list_size = Squeeze (list_size_1d, zeros)
  list_full_shape = Concat <axis = 0> (batch, kv_count, rows, list_size_1d)
  list_flags_full = Expand (list_flag, list_full_shape)
  list_rank = Range (zero, list_size, one)
  list_rank_full = Expand (list_rank, list_full_shape)
  by_block_shape = Concat <axis = 0> (batch, kv_count, group, rows, minus, blocks_of)
  list_scores_shape = Concat <axis = 0> (batch, kv_count, group, rows, minus)
  nothing_shape = Concat <axis = 0> (batch, kv_count, group, rows, ones, blocks_of)
  nothing = Expand (no_bias, nothing_shape)
  parts_shape = Concat <axis = 0> (batch, kv_count, minus, group, rows, width)
  flag_axis = Constant <value = int64[1] {{3}}> ()
  flag_5d = Unsqueeze (list_flag, flag_axis)
{bias}
"""


def _bias_by_choice(op: CachedAttention) -> bool:
    return bool(op.sliding_window) and scores_blocks(op)


def _token_bias(op: CachedAttention, ids: str) -> str:
    """``token_bias [B, 1 or Hkv, n, 64 L]``: 0 where a row sees a token of its list, else -inf."""
    window = "\n  token_visible = Identity (token_causal)\n"
    if op.sliding_window:
        window = f"""
  token_window = Constant <value = int64 {{{op.sliding_window}}}> ()
  token_oldest = Sub (token_row, token_window)
  token_recent = Greater (token_key, token_oldest)
  sink_tokens = Constant <value = int64 {{{op.sinks * op.block}}}> ()
  token_in_sinks = Less (token_key, sink_tokens)
  token_near = Or (token_recent, token_in_sinks)
  token_visible = And (token_causal, token_near)
"""
    return f"""
  token_end = Constant <value = int64 {{{op.block}}}> ()
  token_offset = Range (zero, token_end, one)
  token_block = Mul ({ids}, block)
  token_block_5d = Unsqueeze (token_block, minus)
  token_key = Add (token_block_5d, token_offset)
  token_row_axes = Constant <value = int64[3] {{1, 3, 4}}> ()
  token_row = Unsqueeze (row_position, token_row_axes)
  token_causal = LessOrEqual (token_key, token_row)
{window}
  token_listed = Unsqueeze (list_valid_4d, minus)
  token_seen = And (token_visible, token_listed)
  token_bias_5d = Where (token_seen, no_bias, blocked)
  token_bias_shape = Constant <value = int64[4] {{0, 0, 0, -1}}> ()
  token_bias = Reshape (token_bias_5d, token_bias_shape)
"""


def attend_lists(op: CachedAttention) -> str:
    """``sparse_y [B, n, Hq d]`` and ``sparse_read [1]`` from ``list_ids [B, Hkv, n, L]``."""
    output = f"float[B,n,{op.num_heads * op.head_dim}]"
    bias = _token_bias(op, "list_ids") if _bias_by_choice(op) else ""
    return f"""
{bias}
  sparse_y, sparse_read = If (one_row) <
    then_branch = row_alone () => ({output} row_y, int64[1] row_read) {{
{_one_row(op)}
    }},
    else_branch = rows_together () => ({output} rows_y, int64[1] rows_read) {{
{_many_rows(op)}
    }}
  >
"""


def _sum_to_one(op: CachedAttention, weights: str, out: str) -> str:
    """``out``: softmax weights ``[..., L, block]`` divided by their sum, where a list can be long."""
    listed = max(op.budget_tokens, (op.sinks + op.local_blocks) * op.block)
    if listed <= LONG_LIST and op.budget_share <= LONG_SHARE:
        return f"  {out} = Identity ({weights})"
    return f"""
  {out}_of_blocks = ReduceSum ({weights}, minus)
  {out}_axis = Constant <value = int64[1] {{-2}}> ()
  {out}_sum = ReduceSum ({out}_of_blocks, {out}_axis)
  {out} = Div ({weights}, {out}_sum)
"""


def _one_row(op: CachedAttention) -> str:
    """Each slot's row over the blocks of its list, gathered in that order."""
    group = max(op.group, 2)
    queries = "Identity (q_flat)" if op.group > 1 else "Concat <axis = 2> (q_flat, q_flat)"
    last = f"""
  row_y_shape = Constant <value = int64[3] {{0, 1, {op.num_heads * op.head_dim}}}> ()
"""
    if op.group > 1:
        last += "  row_y = Reshape (row_sum, row_y_shape)\n"
    else:
        last += """
  row_first = Slice (row_sum, zeros, width, threes)
  row_y = Reshape (row_first, row_y_shape)
"""
    return f"""
  row_queries = {queries}
  row_ids_shape = Constant <value = int64[4] {{0, 0, -1, 1}}> ()
  row_ids = Reshape (list_ids, row_ids_shape)
{gather_blocks(op, "k", "row_ids", "row_k")}
{gather_blocks(op, "v", "row_ids", "row_v")}
  row_keys_shape = Constant <value = int64[4] {{0, 0, -1, {op.head_dim}}}> ()
  row_keys = Reshape (row_k, row_keys_shape)
  row_keys_t = Transpose <perm = [0, 1, 3, 2]> (row_keys)
  row_scores = MatMul (row_queries, row_keys_t)
  row_biased = Add (row_scores, token_bias)
  row_weights = Softmax <axis = -1> (row_biased)
  row_blocks_shape = Constant <value = int64[5] {{0, 0, {group}, -1, {op.block}}}> ()
  row_by_head = Reshape (row_weights, row_blocks_shape)
{_sum_to_one(op, "row_by_head", "row_exact")}
  row_by_block = Transpose <perm = [0, 1, 3, 2, 4]> (row_exact)
  row_parts = MatMul (row_by_block, row_v)
  row_parts_shape = Constant <value = int64[4] {{0, 0, -1, {group * op.head_dim}}}> ()
  row_parts_4d = Reshape (row_parts, row_parts_shape)
  row_sum = MatMul (list_flag, row_parts_4d)
{last}
  row_read = Unsqueeze (list_most, zeros)
"""


def _many_rows(op: CachedAttention) -> str:
    """Every block that any row lists is read once, ``U`` of them; each row picks its own.

    Letters: ``list_place [B, Hkv, n, L]`` where a row's blocks stand in the union, ``union_rank
    [B, Hkv, n, U]`` where the union's blocks stand in a row's list (``L``: nowhere).
    """
    d = op.head_dim
    return f"""
{_union(op)}
{gather_blocks(op, "k", "union_ids_4d", "union_k")}
{gather_blocks(op, "v", "union_ids_4d", "union_v")}
  union_keys_shape = Constant <value = int64[4] {{0, 0, -1, {d}}}> ()
  union_keys = Reshape (union_k, union_keys_shape)
  union_keys_t = Transpose <perm = [0, 1, 3, 2]> (union_keys)
  union_scores = MatMul (q_flat, union_keys_t)
  union_by_block = Reshape (union_scores, by_block_shape)
  place_axes = Constant <value = int64[2] {{2, 5}}> ()
  place_6d = Unsqueeze (list_place, place_axes)
  group_shape = Constant <value = int64[6] {{1, 1, {op.group}, 1, 1, 1}}> ()
  place_by_head = Expand (place_6d, group_shape)
  list_by_block = GatherND <batch_dims = 4> (union_by_block, place_by_head)
  list_scores = Reshape (list_by_block, list_scores_shape)
{"  list_bias = Unsqueeze (token_bias, twos)" if _bias_by_choice(op) else ""}
  list_biased = Add (list_scores, list_bias)
  list_weights_flat = Softmax <axis = -1> (list_biased)
  list_weights = Reshape (list_weights_flat, by_block_shape)
{_sum_to_one(op, "list_weights", "list_exact")}
  list_or_nothing = Concat <axis = 4> (list_exact, nothing)
  rank_6d = Unsqueeze (union_rank, place_axes)
  rank_by_head = Expand (rank_6d, group_shape)
  union_weights = GatherND <batch_dims = 4> (list_or_nothing, rank_by_head)
  weights_by_block = Transpose <perm = [0, 1, 4, 2, 3, 5]> (union_weights)
  flat_weights_shape = Constant <value = int64[5] {{0, 0, 0, -1, {op.block}}}> ()
  flat_weights = Reshape (weights_by_block, flat_weights_shape)
  union_parts = MatMul (flat_weights, union_v)
  parts_by_head = Reshape (union_parts, parts_shape)
  parts_by_row = Transpose <perm = [0, 1, 4, 2, 3, 5]> (parts_by_head)
  rows_parts_shape = Constant <value = int64[5] {{0, 0, 0, 0, {op.group * d}}}> ()
  parts_of_row = Reshape (parts_by_row, rows_parts_shape)
  place_5d = Unsqueeze (list_place, minus)
  list_parts = GatherND <batch_dims = 3> (parts_of_row, place_5d)
  rows_sum = MatMul (flag_5d, list_parts)
  rows_sum_shape = Constant <value = int64[4] {{0, 0, 0, {op.group * d}}}> ()
  rows_sum_4d = Reshape (rows_sum, rows_sum_shape)
  rows_heads = Transpose <perm = [0, 2, 1, 3]> (rows_sum_4d)
  rows_y = Reshape (rows_heads, y_shape)
  rows_read = Identity (union_count)
"""


def _union(op: CachedAttention) -> str:
    """``union_ids_4d [B, Hkv, U, 1]``, ``list_place`` and ``union_rank``."""
    return """
  seen = ScatterElements <axis = 3, reduction = "max"> (seen_none, list_ids, list_flags_full)
  row_axis = Constant <value = int64[1] {2}> ()
  union = ReduceMax <keepdims = 0> (seen, row_axis)
  union_sizes = ReduceSum <keepdims = 0> (union, minus)
  union_most = ReduceMax <keepdims = 0> (union_sizes)
  union_end = Cast <to = 7> (union_most)
  union_count = Unsqueeze (union_end, zeros)
  union_flags, union_any = TopK <axis = -1, largest = 1, sorted = 1> (union, union_count)
  in_union = Greater (union_flags, no_bias)
  union_first = Slice (union_any, zeros, ones, minus)
  union_ids = Where (in_union, union_any, union_first)
  union_ids_4d = Unsqueeze (union_ids, minus)
  place = Range (zero, union_end, one)
  union_shape = Shape (union_ids)
  place_full = Expand (place, union_shape)
  place_of_block = ScatterElements <axis = 2> (no_place, union_ids, place_full)
  place_of_block_4d = Unsqueeze (place_of_block, row_axis)
  place_of_block_full = Expand (place_of_block_4d, seen_shape)
  list_place = GatherElements <axis = 3> (place_of_block_full, list_ids)
  place_or_outside = Where (list_valid_4d, list_place, union_end)
  union_and_one = Add (union_count, ones)
  no_rank_shape = Concat <axis = 0> (batch, kv_count, rows, union_and_one)
  no_rank = Expand (list_size, no_rank_shape)
  rank_and_one = ScatterElements <axis = 3> (no_rank, place_or_outside, list_rank_full)
  union_rank = Slice (rank_and_one, zeros, union_count, threes)
"""
