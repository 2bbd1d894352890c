"""``selfdraft::Int4MatMul`` as an ONNX function in standard operators.

It unpacks the very bytes that the kernels read (layout: ``packing``), multiplies in fp32 and rounds once.
No tensor has more than six axes, and no operator on bits is used: TensorRT has neither. It takes
int8 constants only in front of DequantizeLinear or a plugin, so bytes become numbers by a scale of 1; and it
names that layer after the node in the body, so each call needs a function (and name) of its own.
"""

from __future__ import annotations

from selfdraft.trt_plugins.int4_matmul.contract import (
    CHUNK_INPUTS,
    INPUTS,
    OP_DOMAIN,
    OUTPUTS,
    STRIP_OUTPUTS,
    Int4MatMul,
)


def function_text(op: Int4MatMul, *, name: str, opset: int) -> str:
    """The body in ONNX's text format, for ``onnx.parser.parse_function``."""
    return (
        f'<opset_import: ["" : {opset}], domain: "{OP_DOMAIN}">\n'
        f"{name} ({', '.join(INPUTS)}) => ({', '.join(OUTPUTS)})\n"
        f"{{\n{_codes(op, name)}{_scales(op)}{_product(op)}\n}}\n"
    )


def _codes(op: Int4MatMul, name: str) -> str:
    """``codes [padded inputs, 64 strips]`` fp32 from nibbles, low one first."""
    lanes = op.strips * op.chunks * 4 * 8  # strip, chunk, tile, g
    return f"""
  unit = Constant <value = float {{1.0}}> ()
  {name}_signed = DequantizeLinear (weight, unit)
  nothing = Constant <value = float {{0.0}}> ()
  byte_range = Constant <value = float {{256.0}}> ()
  nibble_range = Constant <value = float {{16.0}}> ()
  offset = Constant <value = float {{8.0}}> ()
  below = Less ({name}_signed, nothing)
  lifted = Add ({name}_signed, byte_range)
  byte = Where (below, lifted, {name}_signed)
  shifted = Div (byte, nibble_range)
  high = Floor (shifted)
  high_part = Mul (high, nibble_range)
  low = Sub (byte, high_part)
  last = Constant <value = int64[1] {{-1}}> ()
  low_column = Unsqueeze (low, last)
  high_column = Unsqueeze (high, last)
  nibbles = Concat <axis = -1> (low_column, high_column)
  within = Constant <value = int64[6] {{{lanes * 4}, 2, 2, 2, 2, 2}}> ()
  by_lane = Reshape (nibbles, within)
  by_word = Constant <value = int64[6] {{{lanes}, 4, 4, 2, 2, 2}}> ()
  words = Reshape (by_lane, by_word)
  tqe = Transpose <perm = [0, 1, 2, 4, 3, 5]> (words)
  by_half = Constant <value = int64[6] {{{lanes}, 4, 2, 2, 4, 2}}> ()
  halves = Reshape (tqe, by_half)
  inputs_first = Transpose <perm = [0, 2, 1, 3, 4, 5]> (halves)
  by_strip = Constant <value = int64[6] {{{op.strips}, {op.chunks}, 4, 8, {CHUNK_INPUTS}, 2}}> ()
  strips = Reshape (inputs_first, by_strip)
  plain = Transpose <perm = [1, 4, 0, 2, 5, 3]> (strips)
  matrix = Constant <value = int64[2] {{{op.padded_inputs}, {op.strips * STRIP_OUTPUTS}}}> ()
  shifted_codes = Reshape (plain, matrix)
  codes = Sub (shifted_codes, offset)
"""


def _scales(op: Int4MatMul) -> str:
    """``scales [groups, 1, 64 strips]`` fp32."""
    return f"""
  scale_wide = Cast <to = 1> (scale)
  scale_split = Constant <value = int64[5] {{{op.strips}, {op.groups}, 8, 4, 2}}> ()
  scale_parts = Reshape (scale_wide, scale_split)
  scale_plain = Transpose <perm = [1, 0, 3, 4, 2]> (scale_parts)
  scale_rows = Constant <value = int64[3] {{{op.groups}, 1, {op.strips * STRIP_OUTPUTS}}}> ()
  scales = Reshape (scale_plain, scale_rows)
"""


def _product(op: Int4MatMul) -> str:
    outputs = op.strips * STRIP_OUTPUTS
    return f"""
  grouped = Constant <value = int64[3] {{{op.groups}, {op.group_size}, {outputs}}}> ()
  codes_grouped = Reshape (codes, grouped)
  values_grouped = Mul (codes_grouped, scales)
  values_padded = Reshape (values_grouped, matrix)
  from_first = Constant <value = int64[2] {{0, 0}}> ()
  to_last = Constant <value = int64[2] {{{op.in_features}, {op.out_features}}}> ()
  values = Slice (values_padded, from_first, to_last)
  x_wide = Cast <to = 1> (x)
  y_wide = MatMul (x_wide, values)
  y = Cast <to = 10> (y_wide)
"""
