"""The op as an ONNX function in Orin's layouts: what takes the kernels' place where no GPU is.

Contract: docs/attention.md. Every row scores the whole capacity and masks what it does not see, so the body
is short and has no branch (``If`` inside a function crashes NVIDIA's builder); it is not meant to be fast.
Arithmetic is fp32; caches, summaries and y are what the kernels store. States are updated by ScatterND,
in place where one buffer is bound to input and output.
"""

from __future__ import annotations

from selfdraft.trt_plugins.cached_attention.contract import OP_DOMAIN, CachedAttention
from selfdraft.trt_plugins.cached_attention.onnx_body import CONSTANTS, append_int8
from selfdraft.trt_plugins.cached_attention.onnx_selection import (
    allowed,
    block_logits,
    block_scores,
)
from selfdraft.trt_plugins.cached_attention.onnx_summaries import update_summaries_by_rows


def masked_function_text(op: CachedAttention, *, name: str, opset: int) -> str:
    """The body in ONNX's text format. q, k, v, y fp16; states as ``launches.state_shapes``."""
    assert op.kv_dtype != "fp32", "Orin's caches are fp16 or int8"
    parts = [CONSTANTS, _sizes(op), _append(op), _cached_blocks(op)]
    if op.summary_vectors:
        parts += [update_summaries_by_rows(op, _gathered)]
    parts += [_queries(op), _visible_tokens(op)]
    if op.selector != "all":
        parts += [_visible_blocks(op), _blocks_read()]
    parts += [_attention(op)]
    return (
        f'<opset_import: ["" : {opset}], domain: "{OP_DOMAIN}">\n'
        f"{name} ({', '.join(op.inputs)}) => ({', '.join(op.outputs)})\n"
        f"{{\n{''.join(parts)}\n}}\n"
    )


def _sizes(op: CachedAttention) -> str:
    """Rows, positions and lengths; padded rows stand at the last real row's position."""
    return f"""
  kv_count = Constant <value = int64[1] {{{op.num_kv_heads}}}> ()
  batch = Shape <start = 0, end = 1> (past_len)
  rows = Shape <start = 1, end = 2> (q)
  capacity_blocks = Shape <start = 1, end = 2> (k_cache)
  capacity = Mul (capacity_blocks, blocks_of)
  row_end = Squeeze (rows)
  row = Range (zero, row_end, one)
  past = Unsqueeze (past_len, ones)
  count = Unsqueeze (row_count, ones)
  position = Add (past, row)
  real = Less (row, count)
  length = Add (past_len, row_count)
  last_position = Sub (length, one)
  last_clamped = Max (last_position, zero)
  last_row_position = Unsqueeze (last_clamped, ones)
  row_position = Min (position, last_row_position)
"""


def _append(op: CachedAttention) -> str:
    """Write k and v at (slot, block, head, token); padded rows go to the scratch slot."""
    rows = "".join(
        f"""
  {name}_given = Reshape ({name}, row_shape)
  {name}_rows = {"Cast <to = 1>" if op.kv_dtype == "int8" else "Identity"} ({name}_given)
"""
        for name in "kv"
    )
    write = append_int8("k") + append_int8("v")
    if op.kv_dtype == "fp16":
        write = """
  k_cache_out = ScatterND (k_cache, index, k_rows)
  v_cache_out = ScatterND (v_cache, index, v_rows)
"""
    return f"""
  scratch = Sub (capacity, ones)
  slot = Where (real, position, scratch)
  slot_block = Div (slot, block)
  block_start = Mul (slot_block, block)
  slot_token = Sub (slot, block_start)
  batch_end = Squeeze (batch)
  b = Range (zero, batch_end, one)
  kv_end = Squeeze (kv_count)
  h = Range (zero, kv_end, one)
  b_axes = Constant <value = int64[3] {{1, 2, 3}}> ()
  h_axes = Constant <value = int64[3] {{0, 1, 3}}> ()
  place_axes = Constant <value = int64[2] {{2, 3}}> ()
  b4 = Unsqueeze (b, b_axes)
  h4 = Unsqueeze (h, h_axes)
  block4 = Unsqueeze (slot_block, place_axes)
  token4 = Unsqueeze (slot_token, place_axes)
  grid = Concat <axis = 0> (batch, rows, kv_count, ones)
  b_grid = Expand (b4, grid)
  h_grid = Expand (h4, grid)
  block_grid = Expand (block4, grid)
  token_grid = Expand (token4, grid)
  index = Concat <axis = 3> (b_grid, block_grid, h_grid, token_grid)
  row_shape = Constant <value = int64[4] {{0, 0, {op.num_kv_heads}, {op.head_dim}}}> ()
{rows}
{write}
"""


def _cached_blocks(op: CachedAttention) -> str:
    """``k_blocks``, ``v_blocks [B, Hkv, N, 64, d]`` fp32: the caches after the append."""
    return "".join(
        f"""
  {name}_heads = Transpose <perm = [0, 2, 1, 3, 4]> ({name}_cache_out)
  {name}_wide = Cast <to = 1> ({name}_heads)
{_dequantised(name) if op.kv_dtype == "int8" else f"  {name}_blocks = Identity ({name}_wide)"}
"""
        for name in "kv"
    )


def _dequantised(name: str) -> str:
    return f"""
  {name}_scale_heads = Transpose <perm = [0, 2, 1, 3]> ({name}_scale_out)
  {name}_scale_wide = Cast <to = 1> ({name}_scale_heads)
  {name}_scale_5d = Unsqueeze ({name}_scale_wide, minus)
  {name}_blocks = Mul ({name}_wide, {name}_scale_5d)
"""


def _gathered(op: CachedAttention, name: str, ids: str, result: str) -> str:
    del op
    return f"\n  {result} = GatherND <batch_dims = 2> ({name}_blocks, {ids})\n"


def _queries(op: CachedAttention) -> str:
    """Scaled queries ``q_flat [B, Hkv, G n, d]`` fp32."""
    return f"""
  q_shape = Constant <value = int64[4] {{0, 0, {op.num_heads}, {op.head_dim}}}> ()
  q_rows = Reshape (q, q_shape)
  q_wide = Cast <to = 1> (q_rows)
  scale = Constant <value = float {{{op.scale!r}}}> ()
  q_scaled = Mul (q_wide, scale)
  q_heads = Transpose <perm = [0, 2, 1, 3]> (q_scaled)
  q_flat_shape = Constant <value = int64[4] {{0, {op.num_kv_heads}, -1, {op.head_dim}}}> ()
  q_flat = Reshape (q_heads, q_flat_shape)
"""


def _visible_tokens(op: CachedAttention) -> str:
    """``token_seen [B, 1, n, T]``: causal, and near enough where there is a sliding window."""
    window = "  token_seen = Identity (token_causal)\n"
    if op.sliding_window:
        window = f"""
  window = Constant <value = int64 {{{op.sliding_window}}}> ()
  oldest = Sub (row_column, window)
  recent = Greater (key, oldest)
  sink_end = Constant <value = int64 {{{op.sinks * op.block}}}> ()
  in_sinks = Less (key, sink_end)
  near = Or (recent, in_sinks)
  token_seen = And (token_causal, near)
"""
    return f"""
  key_end = Squeeze (capacity)
  key = Range (zero, key_end, one)
  column_axes = Constant <value = int64[2] {{1, 3}}> ()
  row_column = Unsqueeze (row_position, column_axes)
  token_causal = LessOrEqual (key, row_column)
{window}
"""


def _visible_blocks(op: CachedAttention) -> str:
    """``block_seen [B, 1 or Hkv, n, N]``: which blocks each row sees."""
    choice = "  block_seen = Identity (always_seen)\n"
    if op.summary_vectors:
        choice = f"""
{allowed(op)}
{block_logits(op, _summary_product)}
{block_scores(op)}
{_CHOSEN}
"""
    return f"""
  used_blocks = Squeeze (capacity_blocks)
  num_scored = Identity (used_blocks)
  num_scored_1d = Identity (capacity_blocks)
  block_id = Range (zero, used_blocks, one)
  sinks = Constant <value = int64 {{{op.sinks}}}> ()
  local_most = Constant <value = int64 {{{op.local_blocks}}}> ()
  own_column = Div (row_column, block)
  window_start = Sub (own_column, local_most)
  behind_sinks = GreaterOrEqual (block_id, sinks)
  before_local = LessOrEqual (block_id, window_start)
  selectable = And (behind_sinks, before_local)
  forced = Not (selectable)
  slot_axes = Constant <value = int64[3] {{1, 2, 3}}> ()
  asks_all = Equal (attend_all, one)
  asks_all_4d = Unsqueeze (asks_all, slot_axes)
  always_seen = Or (forced, asks_all_4d)
{choice}
"""


# The first `allowed` of the selectable blocks by score, equal ones by id.
_CHOSEN = """
  excluded = Constant <value = float {-1.0}> ()
  unordered = Constant <value = float {-0.5}> ()
  score_is_nan = IsNaN (block_score)
  score_known = Where (score_is_nan, unordered, block_score)
  ranked = Where (selectable, score_known, excluded)
  best, best_ids = TopK <axis = -1, largest = 1, sorted = 1> (ranked, num_scored_1d)
  rank = Range (zero, used_blocks, one)
  rank_shape = Shape (best_ids)
  rank_full = Expand (rank, rank_shape)
  no_rank = Expand (zero, rank_shape)
  rank_of_block = ScatterElements <axis = 3> (no_rank, best_ids, rank_full)
  allowed_column = Unsqueeze (allowed, column_axes)
  is_best = Less (rank_of_block, allowed_column)
  chosen = And (selectable, is_best)
  block_seen = Or (always_seen, chosen)
"""


def _summary_product(queries: str, per_block: int, width: int) -> str:
    """``head_raw [B, Hkv, G n, N per_block]`` from the summaries as stored."""
    del per_block
    return f"""
  summary_shape = Constant <value = int64[4] {{0, 0, -1, {width}}}> ()
  summary_flat = Reshape (summary_out, summary_shape)
  summary_wide = Cast <to = 1> (summary_flat)
  summary_t = Transpose <perm = [0, 1, 3, 2]> (summary_wide)
  head_raw = MatMul ({queries}, summary_t)
"""


def _blocks_read() -> str:
    """``blocks_read [1]``: the union over a slot's real rows, the largest of all, at least 1."""
    return """
  reached = LessOrEqual (block_id, own_column)
  real_column = Unsqueeze (real, column_axes)
  read_by_row = And (reached, real_column)
  block_read = And (block_seen, read_by_row)
  block_read_int = Cast <to = 7> (block_read)
  read_row_axis = Constant <value = int64[1] {2}> ()
  read_union = ReduceMax <keepdims = 0> (block_read_int, read_row_axis)
  read_sizes = ReduceSum <keepdims = 0> (read_union, minus)
  read_all_axes = Constant <value = int64[2] {0, 1}> ()
  read_most = ReduceMax <keepdims = 0> (read_sizes, read_all_axes)
  read_most_1d = Unsqueeze (read_most, zeros)
  blocks_read = Max (read_most_1d, ones)
"""


def _attention(op: CachedAttention) -> str:
    """``y [B, n, Hq d]`` fp16: softmax over the tokens that each row sees."""
    seen = "  seen = Identity (token_seen)\n"
    if op.selector != "all":
        seen = """
  key_block = Div (key, block)
  seen_in_block = Gather <axis = 3> (block_seen, key_block)
  seen = And (token_seen, seen_in_block)
"""
    d, heads = op.head_dim, op.num_heads
    return f"""
{seen}
  bias = Where (seen, no_bias, blocked)
  bias_axis = Constant <value = int64[1] {{2}}> ()
  bias_5d = Unsqueeze (bias, bias_axis)
  flat_cache = Constant <value = int64[4] {{0, 0, -1, {d}}}> ()
  keys = Reshape (k_blocks, flat_cache)
  values = Reshape (v_blocks, flat_cache)
  keys_t = Transpose <perm = [0, 1, 3, 2]> (keys)
  scores = MatMul (q_flat, keys_t)
  scores_shape = Concat <axis = 0> (batch, kv_count, minus, rows, capacity)
  scores_5d = Reshape (scores, scores_shape)
  biased = Add (scores_5d, bias_5d)
  weights = Softmax <axis = -1> (biased)
  weights_shape = Concat <axis = 0> (batch, kv_count, minus, capacity)
  weights_flat = Reshape (weights, weights_shape)
  mixed = MatMul (weights_flat, values)
  mixed_shape = Constant <value = int64[4] {{0, {heads}, -1, {d}}}> ()
  mixed_heads = Reshape (mixed, mixed_shape)
  mixed_rows = Transpose <perm = [0, 2, 1, 3]> (mixed_heads)
  y_shape = Constant <value = int64[3] {{0, 0, {heads * d}}}> ()
  y_wide = Reshape (mixed_rows, y_shape)
  y = Cast <to = 10> (y_wide)
"""
