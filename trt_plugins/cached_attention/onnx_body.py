"""The ONNX function body of ``selfdraft::CachedAttention`` in standard operators.

Contract: docs/attention.md. States are updated by ScatterND: bound as input and output at one
address, it writes in place. Dense attention costs what the longest sequence of the step is,
block-sparse attention what the chosen blocks and the number of blocks are, never the capacity.

Dense attention in standard operators gives the rows of a step bit for bit what they are alone (where
the engine's matrix products do). ``one_row_kernel`` takes ``GroupQueryAttention`` for steps of one row
a slot instead: faster, since it reads the cache where it lies, but it rounds differently, so it is
for bundles that never speculate. It cannot take several rows of several slots behind a prompt.

Everything that depends on lengths alone stands outside the branches, so that the exporter can
merge it into one copy for all layers.
"""

from __future__ import annotations

from selfdraft.trt_plugins.cached_attention import onnx_selection as selection
from selfdraft.trt_plugins.cached_attention.contract import OP_DOMAIN, CachedAttention

CONTRIB = "com.microsoft"


def function_text(
    op: CachedAttention,
    *,
    name: str,
    opset: int,
    split_heads: bool = False,
    one_row_kernel: bool = False,
) -> str:
    """The body in ONNX's text format, for ``onnx.parser.parse_function``.

    ``one_row_kernel`` has a meaning for dense fp32 attention without a window only.

    ``split_heads``: q, k, v come as ``[B, n, heads, d]`` instead of ``[B, n, heads d]``, which saves
    an exporter that has them so a reshape each.
    """
    parts = [_CONSTANTS, _sizes(op), _heads(op, split_heads), _append_index(op)]
    if one_row_kernel and has_one_row_kernel(op):
        parts += [_one_row_or_many(op)]
    else:
        parts += [_append(op)]
        if op.summary_vectors:
            parts += [selection.update_summaries(op)]
        parts += [_queries(op), _attention(op)]
    return (
        f'<opset_import: ["" : {opset}, "{CONTRIB}" : 1], domain: "{OP_DOMAIN}">\n'
        f"{name} ({', '.join(op.inputs)}) => ({', '.join(op.outputs)})\n"
        f"{{\n{''.join(parts)}\n}}\n"
    )


def has_one_row_kernel(op: CachedAttention) -> bool:
    """Whether ``GroupQueryAttention`` computes this op for one row a slot."""
    return op.selector == "all" and op.kv_dtype == "fp32" and not op.sliding_window


_CONSTANTS = """
  zero = Constant <value = int64 {0}> ()
  one = Constant <value = int64 {1}> ()
  block = Constant <value = int64 {64}> ()
  zeros = Constant <value = int64[1] {0}> ()
  ones = Constant <value = int64[1] {1}> ()
  twos = Constant <value = int64[1] {2}> ()
  minus = Constant <value = int64[1] {-1}> ()
  blocks_of = Constant <value = int64[1] {64}> ()
  no_bias = Constant <value = float {0.0}> ()
  blocked = Constant <value = float {-inf}> ()
"""


def _sizes(op: CachedAttention) -> str:
    return f"""
  kv_count = Constant <value = int64[1] {{{op.num_kv_heads}}}> ()
  group = Constant <value = int64[1] {{{op.group}}}> ()
  width = Constant <value = int64[1] {{{op.head_dim}}}> ()
  batch = Shape <start = 0, end = 1> (past_len)
  rows = Shape <start = 1, end = 2> (q)
  capacity = Shape <start = 2, end = 3> (k_cache)
  row_end = Squeeze (rows)
  row = Range (zero, row_end, one)
  past = Unsqueeze (past_len, ones)
  count = Unsqueeze (row_count, ones)
  position = Add (past, row)
  length = Add (past_len, row_count)
  longest = ReduceMax <keepdims = 0> (length)
  total = Max (longest, one)
"""


def _heads(op: CachedAttention, split_heads: bool) -> str:
    """``q_rows [B, n, Hq, d]``, ``k_rows`` and ``v_rows [B, n, Hkv, d]``."""
    if split_heads:
        return "".join(f"\n  {name}_rows = Identity ({name})" for name in "qkv")
    return f"""
  kv_shape = Constant <value = int64[4] {{0, 0, {op.num_kv_heads}, {op.head_dim}}}> ()
  q_shape = Constant <value = int64[4] {{0, 0, {op.num_heads}, {op.head_dim}}}> ()
  q_rows = Reshape (q, q_shape)
  k_rows = Reshape (k, kv_shape)
  v_rows = Reshape (v, kv_shape)
"""


def _append_index(op: CachedAttention) -> str:
    """Cache slots of new rows: at ``past_len``; padded rows go to the scratch slot."""
    return f"""
  real = Less (row, count)
  scratch = Sub (capacity, ones)
  slot = Where (real, position, scratch)
{selection.scatter_index("index", "slot", "rows", op)}
"""


def _append(op: CachedAttention, out: str = "_out") -> str:
    """Write k and v into the caches, ``k_cache{out}`` and ``v_cache{out}``."""
    if op.kv_dtype == "int8":
        return _append_int8("k") + _append_int8("v")
    return f"""
  k_cache{out} = ScatterND (k_cache, index, k_rows)
  v_cache{out} = ScatterND (v_cache, index, v_rows)
"""


def _append_int8(name: str) -> str:
    """Codes and fp16 scales of new rows: scale = max |x| / 127, code = x / stored scale."""
    return f"""
  {name}_magnitude = Abs ({name}_rows)
  {name}_largest = ReduceMax <keepdims = 0> ({name}_magnitude, minus)
  {name}_seven = Constant <value = float {{127.0}}> ()
  {name}_ratio = Div ({name}_largest, {name}_seven)
  {name}_least = Constant <value = float {{5.960464477539063e-08}}> ()
  {name}_most = Constant <value = float {{65504.0}}> ()
  {name}_above = Clip ({name}_ratio, {name}_least, {name}_most)
  {name}_unit = Constant <value = float {{1.0}}> ()
  {name}_is_zero = Equal ({name}_largest, no_bias)
  {name}_wanted = Where ({name}_is_zero, {name}_unit, {name}_above)
  {name}_scale_rows = Cast <to = 10> ({name}_wanted)
  {name}_stored = Cast <to = 1> ({name}_scale_rows)
  {name}_divisor = Unsqueeze ({name}_stored, minus)
  {name}_scaled = Div ({name}_rows, {name}_divisor)
  {name}_rounded = Round ({name}_scaled)
  {name}_low = Constant <value = float {{-127.0}}> ()
  {name}_clipped = Clip ({name}_rounded, {name}_low, {name}_seven)
  {name}_codes = Cast <to = 3> ({name}_clipped)
  {name}_cache_out = ScatterND ({name}_cache, index, {name}_codes)
  {name}_scale_out = ScatterND ({name}_scale, index, {name}_scale_rows)
"""


def _queries(op: CachedAttention) -> str:
    """Queries ``[B, Hkv, G n, d]``: the heads of a group are rows of one product."""
    return f"""
  q_heads = Transpose <perm = [0, 2, 1, 3]> (q_rows)
  q_flat_shape = Constant <value = int64[4] {{0, {op.num_kv_heads}, -1, {op.head_dim}}}> ()
  q_flat = Reshape (q_heads, q_flat_shape)
  scale = Constant <value = float {{{op.scale!r}}}> ()
  mixed_shape = Constant <value = int64[4] {{0, {op.num_heads}, -1, {op.head_dim}}}> ()
  y_shape = Constant <value = int64[3] {{0, 0, {op.num_heads * op.head_dim}}}> ()
"""


def _attention(op: CachedAttention) -> str:
    if op.selector == "all":
        return "\n  dense_total = Identity (total)\n" + _dense_bias(op) + _dense(op, "y")
    output = f"float[B,n,{op.num_heads * op.head_dim}]"
    return f"""
{selection.dense_condition(op)}
  dense_total = Where (dense, total, one)
{_dense_bias(op)}
{selection.visible_blocks(op)}
  y, blocks_read = If (dense) <
    then_branch = every_block () => ({output} dense_y, int64[1] dense_read) {{
{_dense(op, "dense_y")}
  dense_read = Unsqueeze (used_blocks, zeros)
    }},
    else_branch = chosen_blocks () => ({output} sparse_y, int64[1] union_count) {{
{selection.choose_blocks(op)}
{selection.gather_blocks(op)}
{_scores("sparse")}
{_weigh_by_head("sparse", "sparse_total")}
{_output("sparse", "sparse_y")}
    }}
  >
"""


def _dense_bias(op: CachedAttention) -> str:
    """dense_bias ``[B, 1, G n, T]``: 0 where a row sees a token, else -inf."""
    window = ""
    if op.sliding_window:
        window = f"""
  window = Constant <value = int64 {{{op.sliding_window}}}> ()
  oldest = Sub (position_4d, window)
  recent = Greater (dense_key, oldest)
  sink_end = Constant <value = int64 {{{op.sinks * op.block}}}> ()
  in_sinks = Less (dense_key, sink_end)
  near = Or (recent, in_sinks)
  dense_seen = And (dense_causal, near)
"""
    else:
        window = "\n  dense_seen = Identity (dense_causal)\n"
    return f"""
  dense_key = Range (zero, dense_total, one)
  position_axes = Constant <value = int64[2] {{1, 3}}> ()
  position_4d = Unsqueeze (position, position_axes)
  dense_causal = LessOrEqual (dense_key, position_4d)
{window}
  row_bias = Where (dense_seen, no_bias, blocked)
  group_tiles = Constant <value = int64[4] {{1, 1, {op.group}, 1}}> ()
  dense_bias = Tile (row_bias, group_tiles)
  dense_total_1d = Unsqueeze (dense_total, zeros)
"""


def _one_row_or_many(op: CachedAttention) -> str:
    """Dense attention by ``GroupQueryAttention`` for one row a slot, else as ever.

    The kernel appends too, at the slot after ``past_len`` keys (idle slots write behind their end).
    """
    cache = f"float[B,{op.num_kv_heads},S,{op.head_dim}]"
    y = f"float[B,n,{op.num_heads * op.head_dim}]"
    heads = f"num_heads = {op.num_heads}, kv_num_heads = {op.num_kv_heads}"
    kernel = f"{CONTRIB}.GroupQueryAttention <{heads}, scale = {op.scale!r}>"
    return f"""
  one_row = Equal (row_end, one)
  dense_total = Where (one_row, one, total)
{_dense_bias(op)}
  longest_past = ReduceMax <keepdims = 0> (past_len)
  longest_end = Add (longest_past, one)
  all_keys = Cast <to = 6> (longest_end)
  last_key = Cast <to = 6> (past_len)
  flat_shape = Constant <value = int64[3] {{0, 0, -1}}> ()
  y, k_cache_out, v_cache_out = If (one_row) <
    then_branch = kernel () => ({y} kernel_y, {cache} kernel_k, {cache} kernel_v) {{
  q_wide = Reshape (q_rows, flat_shape)
  k_wide = Reshape (k_rows, flat_shape)
  v_wide = Reshape (v_rows, flat_shape)
  kernel_y, kernel_k, kernel_v = {kernel} (
    q_wide, k_wide, v_wide, k_cache, v_cache, last_key, all_keys)
    }},
    else_branch = rows () => ({y} rows_y, {cache} k_cache_rows, {cache} v_cache_rows) {{
{_append(op, "_rows")}
{_queries(op)}
{_dense(op, "rows_y", "_rows")}
    }}
  >
"""


def _dense(op: CachedAttention, y: str, out: str = "_out") -> str:
    """Attention over the part of the cache in use."""
    if op.kv_dtype == "int8":
        read = _dequantized("k", "keys") + _dequantized("v", "values")
    else:
        read = f"""
  dense_keys = Slice (k_cache{out}, zeros, dense_total_1d, twos)
  dense_values = Slice (v_cache{out}, zeros, dense_total_1d, twos)
"""
    return read + _scores("dense") + _weigh_by_rows("dense") + _output("dense", y)


def _dequantized(name: str, result: str) -> str:
    return f"""
  {name}_codes_used = Slice ({name}_cache_out, zeros, dense_total_1d, twos)
  {name}_scale_used = Slice ({name}_scale_out, zeros, dense_total_1d, twos)
  {name}_codes_float = Cast <to = 1> ({name}_codes_used)
  {name}_scale_float = Cast <to = 1> ({name}_scale_used)
  {name}_scale_4d = Unsqueeze ({name}_scale_float, minus)
  dense_{result} = Mul ({name}_codes_float, {name}_scale_4d)
"""


def _scores(prefix: str) -> str:
    """``{prefix}_scaled [B, Hkv, G n, T]`` over ``{prefix}_keys [B, Hkv, T, d]``."""
    p = prefix
    return f"""
  {p}_keys_t = Transpose <perm = [0, 1, 3, 2]> ({p}_keys)
  {p}_raw = MatMul (q_flat, {p}_keys_t)
  {p}_scaled = Mul ({p}_raw, scale)
"""


def _weigh_by_rows(prefix: str) -> str:
    """Softmax with a bias that has the rows of the scores, ``[B, 1, G n, T]``."""
    p = prefix
    return f"""
  {p}_biased = Add ({p}_scaled, {p}_bias)
  {p}_weights_flat = Softmax <axis = -1> ({p}_biased)
"""


def _weigh_by_head(prefix: str, total: str) -> str:
    """Softmax with a bias that all heads of a group share, ``[B, Hkv, 1, n, T]``."""
    p = prefix
    return f"""
  {p}_score_shape = Concat <axis = 0> (batch, kv_count, group, rows, {total})
  {p}_scores = Reshape ({p}_scaled, {p}_score_shape)
  {p}_biased = Add ({p}_scores, {p}_bias)
  {p}_weights = Softmax <axis = -1> ({p}_biased)
  {p}_weight_shape = Concat <axis = 0> (batch, kv_count, minus, {total})
  {p}_weights_flat = Reshape ({p}_weights, {p}_weight_shape)
"""


def _output(prefix: str, y: str) -> str:
    """``y [B, n, Hq d]`` from weights and ``{prefix}_values``."""
    p = prefix
    return f"""
  {p}_mixed = MatMul ({p}_weights_flat, {p}_values)
  {p}_mixed_heads = Reshape ({p}_mixed, mixed_shape)
  {p}_mixed_rows = Transpose <perm = [0, 2, 1, 3]> ({p}_mixed_heads)
  {y} = Reshape ({p}_mixed_rows, y_shape)
"""
