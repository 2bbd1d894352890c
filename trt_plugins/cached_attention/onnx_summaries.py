"""ONNX text: the summaries of touched blocks, and reading blocks and writing rows by index.

Definitions: docs/attention.md, Summaries. Part of the function body (``onnx_body.py``).
"""

from __future__ import annotations

from collections.abc import Callable

from selfdraft.trt_plugins.cached_attention.contract import CachedAttention

Gather = Callable[[CachedAttention, str, str, str], str]
"""Text that gives ``result [B, Hkv, R, 64, d]`` fp32: (op, cache's letter, ids ``[B, Hkv, R, 1]``, result)."""


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
    """``summary_out`` with the blocks recomputed whose last token this step writes; often none.

    No row can select a block before its last token is written, and a step that writes it anew, after
    a rejection, recomputes its summary. infllm_v2 starts one block earlier and reads one block more:
    its windows reach on.
    """
    touched = f"""
  reach = Constant <value = int64 {{{_reach(op)}}}> ()
  first_completed = Div (past_len, block)
  complete_after = Div (length, block)
  completed = Sub (complete_after, first_completed)
  completed_most = ReduceMax <keepdims = 0> (completed)
  completes = Greater (completed_most, zero)
  with_reach = Add (completed_most, reach)
  touched_end = Where (completes, with_reach, zero)
  touched_count = Unsqueeze (touched_end, zeros)
  first_reached = Sub (first_completed, reach)
  first_touched = Max (first_reached, zero)
  last_completed = Sub (complete_after, one)
  last_touched = Max (last_completed, zero)
"""
    return _summaries(op, gather_blocks, touched)


def update_summaries_by_rows(op: CachedAttention, gather: Gather) -> str:
    """As ``update_summaries``, with shapes that follow from the number of rows alone.

    Recomputed are the block before ``past_len`` and every block that a row touches.
    """
    touched = f"""
  reach = Constant <value = int64 {{{_reach(op)}}}> ()
  before = Sub (past_len, one)
  before_block = Div (before, block)
  before_start = Sub (before_block, reach)
  first_touched = Max (before_start, zero)
  last_row = Sub (length, one)
  last_kept = Max (last_row, zero)
  last_touched = Div (last_kept, block)
  touched_span = Div (rows, blocks_of)
  touched_extra = Constant <value = int64[1] {{{2 + _reach(op)}}}> ()
  touched_count = Add (touched_span, touched_extra)
  touched_end = Squeeze (touched_count, zeros)
"""
    return _summaries(op, gather, touched)


def _reach(op: CachedAttention) -> int:
    """Blocks before the first that windows reach out of."""
    return 1 if op.selector == "infllm_v2" else 0


def _summaries(op: CachedAttention, gather: Gather, touched: str) -> str:
    """``touched``: ``touched_end`` blocks of each slot (also ``touched_count [1]``), from
    ``first_touched [B]`` to ``last_touched [B]``."""
    return f"""
{touched}
  touched_step = Range (zero, touched_end, one)
  first_column = Unsqueeze (first_touched, ones)
  last_column = Unsqueeze (last_touched, ones)
  touched_all = Add (first_column, touched_step)
  touched = Min (touched_all, last_column)
{scatter_index("summary_index", "touched", "touched_count", op)}
  touched_shape = Concat <axis = 0> (batch, kv_count, touched_count, ones)
  touched_axes = Constant <value = int64[2] {{1, 3}}> ()
  touched_4d = Unsqueeze (touched, touched_axes)
  touched_ids = Expand (touched_4d, touched_shape)
{gather(op, "k", "touched_ids", "touched_k")}
{_infllm_vectors(op, gather) if _reach(op) else _spread_vectors(op)}
  summary_half = Cast <to = 10> (summary_new)
  summary_rows = Transpose <perm = [0, 2, 1, 3, 4]> (summary_half)
  summary_out = ScatterND (summary, summary_index, summary_rows)
"""


def gather_blocks(op: CachedAttention, name: str, ids: str, result: str) -> str:
    """``result [B, Hkv, R, 64, d]``: the blocks ``ids [B, Hkv, R, 1]`` of the ``name`` cache."""
    raw = f"{result}_codes" if op.kv_dtype == "int8" else result
    text = f"""
  {result}_shape = Constant <value = int64[5] {{0, 0, -1, {op.block}, {op.head_dim}}}> ()
  {result}_blocks = Reshape ({name}_cache_out, {result}_shape)
  {raw} = GatherND <batch_dims = 2> ({result}_blocks, {ids})
"""
    if op.kv_dtype == "int8":
        text += f"""
  {result}_scale_shape = Constant <value = int64[4] {{0, 0, -1, {op.block}}}> ()
  {result}_scale_blocks = Reshape ({name}_scale_out, {result}_scale_shape)
  {result}_scale16 = GatherND <batch_dims = 2> ({result}_scale_blocks, {ids})
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


def _infllm_vectors(op: CachedAttention, gather: Gather) -> str:
    """summary_new ``[B, Hkv, R, 5, d]``: four C1 and one C2 window means of each block.

    A window is an average of 16-token means; those of the block behind come from ``next_k``,
    gathered beside them (past the end of the sequence nothing reads the result).
    """
    return f"""
  last_block = Sub (capacity_blocks, ones)
  following = Add (touched, one)
  next_touched = Min (following, last_block)
  next_4d = Unsqueeze (next_touched, touched_axes)
  next_ids = Expand (next_4d, touched_shape)
{gather(op, "k", "next_ids", "next_k")}
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
