"""The ONNX function body of ``selfdraft::CachedAttention`` in standard operators.

Contract: docs/attention.md. States are updated by ScatterND: bound as input and output at one
address, it writes in place. Dense attention costs what the longest sequence of the step is,
block-sparse attention what the chosen blocks and the number of blocks are, never the capacity.

Attention in standard operators gives the rows of a step bit for bit what they are alone (where the
engine's matrix products do). ``one_row_kernel`` takes ``GroupQueryAttention`` for steps of one row
a slot that see everything: faster, since it reads the cache where it lies, but it rounds differently,
so it is for bundles that never speculate. It cannot take several rows of several slots behind a prompt.

Rows see all of the cache when every slot asks for it (``attend_all``); else each row has a list of
blocks (``onnx_selection.py``) and attends to those (``onnx_rows.py``), however short its context.

Everything that depends on lengths alone stands outside the branches, so that the exporter can
merge it into one copy for all layers.
"""

from __future__ import annotations

from selfdraft.trt_plugins.cached_attention import onnx_rows, onnx_selection
from selfdraft.trt_plugins.cached_attention.contract import OP_DOMAIN, CachedAttention
from selfdraft.trt_plugins.cached_attention.onnx_summaries import scatter_index, update_summaries

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

    ``one_row_kernel`` has a meaning for fp32 attention without a window only.

    ``split_heads``: q, k, v come as ``[B, n, heads, d]`` instead of ``[B, n, heads d]``, which saves
    an exporter that has them so a reshape each.
    """
    kernel = one_row_kernel and has_one_row_kernel(op)
    parts = [CONSTANTS, _sizes(op), _heads(op, split_heads), _append_index(op)]
    if op.selector != "all":
        parts += [onnx_selection.row_lists(op)]
    parts += [_conditions(op, kernel=kernel)]
    parts += [_append_or_kernel(op) if kernel else _append(op)]
    if op.summary_vectors:
        parts += [update_summaries(op)]
    parts += [_dense_bias(op), _attention(op, kernel=kernel)]
    return (
        f'<opset_import: ["" : {opset}, "{CONTRIB}" : 1], domain: "{OP_DOMAIN}">\n'
        f"{name} ({', '.join(op.inputs)}) => ({', '.join(op.outputs)})\n"
        f"{{\n{''.join(parts)}\n}}\n"
    )


def has_one_row_kernel(op: CachedAttention) -> bool:
    """Whether ``GroupQueryAttention`` computes this op for one row that sees everything."""
    return op.selector != "window" and op.kv_dtype == "fp32" and not op.sliding_window


CONSTANTS = """
  zero = Constant <value = int64 {0}> ()
  one = Constant <value = int64 {1}> ()
  block = Constant <value = int64 {64}> ()
  zeros = Constant <value = int64[1] {0}> ()
  ones = Constant <value = int64[1] {1}> ()
  twos = Constant <value = int64[1] {2}> ()
  threes = Constant <value = int64[1] {3}> ()
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
  capacity_blocks = Div (capacity, blocks_of)
  row_end = Squeeze (rows)
  row = Range (zero, row_end, one)
  past = Unsqueeze (past_len, ones)
  count = Unsqueeze (row_count, ones)
  position = Add (past, row)
  length = Add (past_len, row_count)
  longest = ReduceMax <keepdims = 0> (length)
  total = Max (longest, one)
  one_row = Equal (row_end, one)
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
{scatter_index("index", "slot", "rows", op)}
"""


def _append(op: CachedAttention) -> str:
    """Write k and v into the caches."""
    if op.kv_dtype == "int8":
        return append_int8("k") + append_int8("v")
    return """
  k_cache_out = ScatterND (k_cache, index, k_rows)
  v_cache_out = ScatterND (v_cache, index, v_rows)
"""


def append_int8(name: str) -> str:
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
    """Scaled queries ``[B, Hkv, G n, d]``: the heads of a group are rows of one product."""
    return f"""
  scale = Constant <value = float {{{op.scale!r}}}> ()
  q_scaled = Mul (q_rows, scale)
  q_heads = Transpose <perm = [0, 2, 1, 3]> (q_scaled)
  q_flat_shape = Constant <value = int64[4] {{0, {op.num_kv_heads}, -1, {op.head_dim}}}> ()
  q_flat = Reshape (q_heads, q_flat_shape)
  mixed_shape = Constant <value = int64[4] {{0, {op.num_heads}, -1, {op.head_dim}}}> ()
"""


def _conditions(op: CachedAttention, *, kernel: bool) -> str:
    """``dense``: every slot attends to all of its cache; ``kernel_serves``: one row a slot that does.

    ``takes_dense``: the dense branch runs.
    """
    if op.selector == "all":
        dense = "\n  dense = Equal (one, one)\n  kernel_serves = Identity (one_row)\n"
    else:
        dense = """
  all_dense = ReduceMin <keepdims = 0> (attend_all)
  dense = Equal (all_dense, one)
  leaves_nothing = Not (starved)
  kernel_serves = And (one_row, leaves_nothing)
"""
    if not kernel:
        return dense + "  takes_dense = Identity (dense)\n"
    return f"""
{dense}
  kernel_fails = Not (kernel_serves)
  takes_dense = And (dense, kernel_fails)
"""


def _attention(op: CachedAttention, *, kernel: bool) -> str:
    """``y``, and ``blocks_read`` of selectors that count, from the first way that serves the step."""
    y_shape = f"""
  y_shape = Constant <value = int64[3] {{0, 0, {op.num_heads * op.head_dim}}}> ()
"""
    if op.selector == "all":
        computed = _queries(op) + _dense(op, "dense_y" if kernel else "y")
        return y_shape + (_kernel_or(op, computed, "dense_y") if kernel else computed)
    lists = onnx_rows.row_masks(op)
    lists += onnx_selection.scored_blocks(op) if onnx_selection.scores_blocks(op) else ""
    outputs = ("chosen_y", "chosen_read") if kernel else ("y", "blocks_read")
    computed = f"""
{_queries(op)}
  {", ".join(outputs)} = If (dense) <
    then_branch = every_block () => ({_y(op)} dense_y, int64[1] dense_read) {{
{_dense(op, "dense_y")}
  dense_read = Unsqueeze (used_blocks, zeros)
    }},
    else_branch = own_blocks () => ({_y(op)} sparse_y, int64[1] sparse_read) {{
{onnx_selection.list_blocks(op)}
{onnx_rows.attend_lists(op)}
    }}
  >
"""
    if kernel:
        computed = _kernel_or(op, computed, "chosen_y")
    return y_shape + lists + computed


def _y(op: CachedAttention) -> str:
    return f"float[B,n,{op.num_heads * op.head_dim}]"


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
    # Lengths alone decide it, so it stands outside the branches; where none takes it, it is small.
    return f"""
  dense_total = Where (takes_dense, total, one)
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


def _append_or_kernel(op: CachedAttention) -> str:
    """Caches and ``kernel_y`` by ``GroupQueryAttention`` where it serves the step, else appended.

    The kernel appends too, at the slot after ``past_len`` keys (idle slots write behind their end).
    """
    cache = f"float[B,{op.num_kv_heads},S,{op.head_dim}]"
    heads = f"num_heads = {op.num_heads}, kv_num_heads = {op.num_kv_heads}"
    kernel = f"{CONTRIB}.GroupQueryAttention <{heads}, scale = {op.scale!r}>"
    return f"""
  longest_past = ReduceMax <keepdims = 0> (past_len)
  longest_end = Add (longest_past, one)
  all_keys = Cast <to = 6> (longest_end)
  last_key = Cast <to = 6> (past_len)
  flat_shape = Constant <value = int64[3] {{0, 0, -1}}> ()
  kernel_y, k_cache_out, v_cache_out = If (kernel_serves) <
    then_branch = kernel () => ({_y(op)} served_y, {cache} kernel_k, {cache} kernel_v) {{
  q_wide = Reshape (q_rows, flat_shape)
  k_wide = Reshape (k_rows, flat_shape)
  v_wide = Reshape (v_rows, flat_shape)
  served_y, kernel_k, kernel_v = {kernel} (
    q_wide, k_wide, v_wide, k_cache, v_cache, last_key, all_keys)
    }},
    else_branch = append () => (float[R,S,T] no_y, {cache} k_appended, {cache} v_appended) {{
  no_y_shape = Constant <value = int64[3] {{0, 0, 0}}> ()
  no_y = ConstantOfShape (no_y_shape)
  k_appended = ScatterND (k_cache, index, k_rows)
  v_appended = ScatterND (v_cache, index, v_rows)
    }}
  >
"""


def _kernel_or(op: CachedAttention, otherwise: str, y: str) -> str:
    """``y`` (and the counter) of the kernel where it served the step, else of ``otherwise``."""
    counts = op.selector != "all"
    outputs = "y, blocks_read" if counts else "y"
    all_read = ", int64[1] kernel_read" if counts else ""
    read = ", int64[1] chosen_read" if counts else ""
    return f"""
  {outputs} = If (kernel_serves) <
    then_branch = served () => ({_y(op)} y_served{all_read}) {{
  y_served = Reshape (kernel_y, y_shape)
{"  kernel_read = Unsqueeze (used_blocks, zeros)" if counts else ""}
    }},
    else_branch = computed () => ({_y(op)} {y}{read}) {{
{otherwise}
    }}
  >
"""


def _dense(op: CachedAttention, y: str) -> str:
    """Attention over the part of the cache in use."""
    if op.kv_dtype == "int8":
        read = _dequantized("k", "keys") + _dequantized("v", "values")
    else:
        read = """
  dense_keys = Slice (k_cache_out, zeros, dense_total_1d, twos)
  dense_values = Slice (v_cache_out, zeros, dense_total_1d, twos)
"""
    before, after = _two_rows_at_least() if op.group == 1 else _ROWS_AS_THEY_ARE
    return f"""
{read}
{before}
  dense_keys_t = Transpose <perm = [0, 1, 3, 2]> (dense_keys)
  dense_scores = MatMul (dense_queries, dense_keys_t)
  dense_biased = Add (dense_scores, dense_bias)
  dense_weights = Softmax <axis = -1> (dense_biased)
  dense_sums = MatMul (dense_weights, dense_values)
{after}
  dense_heads = Reshape (dense_mixed, mixed_shape)
  dense_by_row = Transpose <perm = [0, 2, 1, 3]> (dense_heads)
  {y} = Reshape (dense_by_row, y_shape)
"""


_ROWS_AS_THEY_ARE = (
    "  dense_queries = Identity (q_flat)\n",
    "  dense_mixed = Identity (dense_sums)\n",
)


def _two_rows_at_least() -> tuple[str, str]:
    """A single row of a group of one stands twice: products of one row round otherwise than others."""
    before = """
  twice = Constant <value = int64[4] {1, 1, 2, 1}> ()
  once = Constant <value = int64[4] {1, 1, 1, 1}> ()
  repeats = Where (one_row, twice, once)
  dense_queries = Tile (q_flat, repeats)
"""
    return before, "\n  dense_mixed = Slice (dense_sums, zeros, rows, twos)\n"


def _dequantized(name: str, result: str) -> str:
    return f"""
  {name}_codes_used = Slice ({name}_cache_out, zeros, dense_total_1d, twos)
  {name}_scale_used = Slice ({name}_scale_out, zeros, dense_total_1d, twos)
  {name}_codes_float = Cast <to = 1> ({name}_codes_used)
  {name}_scale_float = Cast <to = 1> ({name}_scale_used)
  {name}_scale_4d = Unsqueeze ({name}_scale_float, minus)
  dense_{result} = Mul ({name}_codes_float, {name}_scale_4d)
"""
