"""The ONNX function body of ``selfdraft::CachedAttention`` in standard operators.

Dense attention (selector ``all``) over fp32 caches ``[B, Hkv, S, d]``. The caches are updated by
ScatterND: bound as input and output at one address, it writes in place. The cost follows the
longest sequence of the step, not the capacity. Contract: docs/architecture.md, Graphs.

Why not ``GroupQueryAttention``: it costs the same up to about 4K tokens, takes several rows of
several slots only at the first prompt, and rounds one row and several rows differently; here
the rows of a step are bit for bit what they are alone.
"""

from __future__ import annotations

from dataclasses import dataclass

DOMAIN = "selfdraft"
OP_TYPE = "CachedAttention"
INPUTS = ("q", "k", "v", "k_cache", "v_cache", "past_len", "row_count", "attend_all")
OUTPUTS = ("y", "k_cache_out", "v_cache_out")


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyAttributes:
    """Attribute set of one body; heads, kv heads, head dimension and softmax scale."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float


def function_text(attributes: BodyAttributes, *, opset: int) -> str:
    """The body in ONNX's text format, for ``onnx.parser.parse_function``."""
    a = attributes
    group = a.num_heads // a.num_kv_heads
    return f"""
<opset_import: ["" : {opset}], domain: "{DOMAIN}">
{OP_TYPE} ({", ".join(INPUTS)}) => ({", ".join(OUTPUTS)})
{{
  zero = Constant <value = int64 {{0}}> ()
  one = Constant <value = int64 {{1}}> ()
  zeros = Constant <value = int64[1] {{0}}> ()
  ones = Constant <value = int64[1] {{1}}> ()
  twos = Constant <value = int64[1] {{2}}> ()
  kv_heads = Constant <value = int64 {{{a.num_kv_heads}}}> ()
  # Cache slot of every row; padded rows go to the scratch slot.
  batch = Shape <start = 0, end = 1> (past_len)
  rows = Shape <start = 1, end = 2> (q)
  capacity = Shape <start = 2, end = 3> (k_cache)
  row_end = Squeeze (rows, zeros)
  row = Range (zero, row_end, one)
  past = Unsqueeze (past_len, ones)
  count = Unsqueeze (row_count, ones)
  position = Add (past, row)
  real = Less (row, count)
  scratch = Sub (capacity, ones)
  slot = Where (real, position, scratch)
  # index [B, n, Hkv, 3] = (b, h, slot)
  batch_end = Squeeze (batch, zeros)
  b = Range (zero, batch_end, one)
  h = Range (zero, kv_heads, one)
  b_axes = Constant <value = int64[3] {{1, 2, 3}}> ()
  h_axes = Constant <value = int64[3] {{0, 1, 3}}> ()
  s_axes = Constant <value = int64[2] {{2, 3}}> ()
  b4 = Unsqueeze (b, b_axes)
  h4 = Unsqueeze (h, h_axes)
  s4 = Unsqueeze (slot, s_axes)
  kv_count = Constant <value = int64[1] {{{a.num_kv_heads}}}> ()
  grid = Concat <axis = 0> (batch, rows, kv_count, ones)
  b_grid = Expand (b4, grid)
  h_grid = Expand (h4, grid)
  s_grid = Expand (s4, grid)
  index = Concat <axis = 3> (b_grid, h_grid, s_grid)
  kv_shape = Constant <value = int64[4] {{0, 0, {a.num_kv_heads}, {a.head_dim}}}> ()
  k_rows = Reshape (k, kv_shape)
  v_rows = Reshape (v, kv_shape)
  k_cache_out = ScatterND (k_cache, index, k_rows)
  v_cache_out = ScatterND (v_cache, index, v_rows)
  # Keys and values up to the longest sequence of this step.
  length = Add (past_len, row_count)
  longest = ReduceMax <keepdims = 0> (length)
  total = Max (longest, one)
  total_1d = Unsqueeze (total, zeros)
  keys = Slice (k_cache_out, zeros, total_1d, twos)
  values = Slice (v_cache_out, zeros, total_1d, twos)
  # visible [B, 1, n, 1, T]: the one place that decides which rows see which.
  key_position = Range (zero, total, one)
  position_axes = Constant <value = int64[3] {{1, 3, 4}}> ()
  position_5d = Unsqueeze (position, position_axes)
  visible = LessOrEqual (key_position, position_5d)
  no_bias = Constant <value = float {{0.0}}> ()
  blocked = Constant <value = float {{-inf}}> ()
  bias = Where (visible, no_bias, blocked)
  # scores [B, Hkv, n, G, T]
  q_shape = Constant <value = int64[5] {{0, 0, {a.num_kv_heads}, {group}, {a.head_dim}}}> ()
  q_grouped = Reshape (q, q_shape)
  q_heads = Transpose <perm = [0, 2, 1, 3, 4]> (q_grouped)
  flat_shape = Constant <value = int64[4] {{0, {a.num_kv_heads}, -1, {a.head_dim}}}> ()
  q_flat = Reshape (q_heads, flat_shape)
  keys_t = Transpose <perm = [0, 1, 3, 2]> (keys)
  raw = MatMul (q_flat, keys_t)
  scale = Constant <value = float {{{a.scale!r}}}> ()
  scaled = Mul (raw, scale)
  group_1d = Constant <value = int64[1] {{{group}}}> ()
  score_shape = Concat <axis = 0> (batch, kv_count, rows, group_1d, total_1d)
  scores = Reshape (scaled, score_shape)
  biased = Add (scores, bias)
  weights = Softmax <axis = -1> (biased)
  minus = Constant <value = int64[1] {{-1}}> ()
  weight_shape = Concat <axis = 0> (zeros, kv_count, minus, total_1d)
  weights_flat = Reshape (weights, weight_shape)
  mixed = MatMul (weights_flat, values)
  mixed_shape = Concat <axis = 0> (batch, kv_count, rows, group_1d, minus)
  mixed_5d = Reshape (mixed, mixed_shape)
  mixed_rows = Transpose <perm = [0, 2, 1, 3, 4]> (mixed_5d)
  y_shape = Constant <value = int64[3] {{0, 0, {a.num_heads * a.head_dim}}}> ()
  y = Reshape (mixed_rows, y_shape)
}}
"""
