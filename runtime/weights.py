"""Names, shapes and values of a bundle's weights (docs/architecture.md, Weights)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfdraft.bf16 import fp32_from_bf16
from selfdraft.errors import BundleError, ConfigError
from selfdraft.manifest import ModelSpec
from selfdraft.trt_plugins.gated_delta_rule.from_manifest import delta_op
from selfdraft.trt_plugins.int4_matmul.oracle import dense_weight
from selfdraft.trt_plugins.int4_matmul.packing import matmul_of

Shape = tuple[int, ...]
FloatArray = NDArray[np.float64]

DRAFT_IDS = "mtp.draft_ids"
PAD_PREFIX = "__pad."
"""Zero bytes that bring the next tensor to a multiple of 64 (docs/architecture.md, Weights)."""
_MEND = "export the bundle again with: selfdraft export CHECKPOINT -o BUNDLE"


def expected_shapes(model: ModelSpec) -> dict[str, Shape]:
    """Shape of every tensor that the graphs of ``model`` read, by name."""
    hidden, vocab = model.hidden_size, model.vocab_size
    shapes: dict[str, Shape] = {}
    for layer in range(model.num_layers):
        shapes |= _backbone_layer_shapes(model, layer)
    shapes["backbone.norm"] = (hidden,)
    if not model.tied_head:
        shapes["lm_head.weight"] = (hidden, vocab)
    if model.mtp is not None:
        for name in ("hidden_norm", "embedding_norm", "final_norm"):
            shapes[f"mtp.{name}"] = (hidden,)
        shapes["mtp.proj.weight"] = (2 * hidden, hidden)
        shapes |= _layer_shapes(model, "mtp.layer")
        if model.mtp.draft_vocab_size is not None:
            shapes["mtp.draft_head.weight"] = (hidden, model.mtp.draft_vocab_size)
            shapes[DRAFT_IDS] = (model.mtp.draft_vocab_size,)
    return shapes


def _backbone_layer_shapes(model: ModelSpec, layer: int) -> dict[str, Shape]:
    prefix = f"backbone.layers.{layer}"
    if not model.is_delta(layer):
        return _layer_shapes(model, prefix)
    return {f"{prefix}.{name}": shape for name, shape in _delta_shapes(model).items()}


def _delta_shapes(model: ModelSpec) -> dict[str, Shape]:
    op, hidden = delta_op(model), model.hidden_size
    assert op is not None
    return {
        **_norm_shapes(model),
        **_mlp_shapes(model),
        "in_proj.weight": (hidden, op.channels + op.value_size),
        "gates.weight": (hidden, 2 * op.num_value_heads),
        "conv": (op.channels, op.taps),
        "a_log": (op.num_value_heads,),
        "dt_bias": (op.num_value_heads,),
        "delta_norm": (op.value_dim,),
        "o.weight": (op.value_size, hidden),
    }


def _norm_shapes(model: ModelSpec) -> dict[str, Shape]:
    return {"input_norm": (model.hidden_size,), "post_norm": (model.hidden_size,)}


def _mlp_shapes(model: ModelSpec) -> dict[str, Shape]:
    hidden, width = model.hidden_size, model.intermediate_size
    return {"gate_up.weight": (hidden, 2 * width), "down.weight": (width, hidden)}


def _layer_shapes(model: ModelSpec, prefix: str) -> dict[str, Shape]:
    hidden, head = model.hidden_size, model.head_dim
    qkv = model.query_size + 2 * model.num_kv_heads * head
    shapes: dict[str, Shape] = {
        **_norm_shapes(model),
        "qkv.weight": (hidden, qkv),
        "o.weight": (model.num_heads * head, hidden),
        **_mlp_shapes(model),
    }
    if model.qkv_bias:
        shapes["qkv.bias"] = (qkv,)
    if model.qk_norm:
        shapes |= {"q_norm": (head,), "k_norm": (head,)}
    if model.sandwich_norm:
        shapes |= {"attention_out_norm": (hidden,), "mlp_out_norm": (hidden,)}
    return {f"{prefix}.{name}": shape for name, shape in shapes.items()}


def checked_weights(
    model: ModelSpec, tensors: Mapping[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """The weights as fp64 (draft ids as int64), each with the shape the model asks for.

    Quantised matrices (``X.int4`` or ``X.int8`` with ``X.scale``, ``X.zero``, ``X.order``) come back
    as ``X``. Raises ``BundleError`` that names the
    first missing, misshaped or unknown tensor.
    """
    left = dict(tensors)
    shapes = expected_shapes(model)
    weights = {name: _taken(left, name, shape) for name, shape in shapes.items()}
    if left:
        raise BundleError(f"the weights hold an unknown tensor: {min(left)}", hint=_MEND)
    return weights


def load_layer(path: Path, model: ModelSpec, layer: int) -> dict[str, NDArray[Any]]:
    """Weights of one backbone layer as fp64, by their full names; reads no other tensor.

    Raises ``BundleError`` as ``checked_weights`` and ``load_tensors`` do.
    """
    from safetensors import SafetensorError, safe_open

    prefix = f"backbone.layers.{layer}"
    try:
        with safe_open(path, framework="numpy") as file:
            names = [name for name in file.keys() if name.startswith(f"{prefix}.")]  # noqa: SIM118
            left = {name: file.get_tensor(name) for name in names}
    except (OSError, SafetensorError) as error:
        raise BundleError(f"{path} cannot be read: {error}", hint=_MEND) from None
    shapes = _backbone_layer_shapes(model, layer)
    return {name: _taken(left, name, shape) for name, shape in shapes.items()}


def _taken(left: dict[str, NDArray[Any]], name: str, shape: Shape) -> NDArray[Any]:
    """Take the tensor ``name`` out of ``left``, checked and in the type to compute with."""
    if f"{name}.strips" in left:
        return _from_strips(left, name, shape)
    if f"{name}.int4" in left or f"{name}.int8" in left:
        kinds = ("int4", "int8", "scale", "zero", "order")
        parts = {kind: left.pop(f"{name}.{kind}") for kind in kinds if f"{name}.{kind}" in left}
        return _dequantised(name, parts, shape)
    if f"{name}.bf16" in left:
        left[name] = fp32_from_bf16(left.pop(f"{name}.bf16"))
    if name not in left:
        raise BundleError(f"the weights lack {name} {list(shape)}", hint=_MEND)
    tensor = left.pop(name)
    if tensor.shape != shape:
        raise BundleError(
            f"{name} has shape {list(tensor.shape)}, the manifest asks for {list(shape)}",
            hint=_MEND,
        )
    return tensor.astype(np.int64 if name == DRAFT_IDS else np.float64)


def _from_strips(left: dict[str, NDArray[Any]], name: str, shape: Shape) -> FloatArray:
    """The matrix behind 4-bit codes in the layout of ``Int4MatMul``."""
    weight, scale = left.pop(f"{name}.strips"), left.pop(f"{name}.strip_scale", np.empty(0))
    try:
        op = matmul_of(weight.shape, scale.shape, in_features=shape[0], out_features=shape[1])
        values = dense_weight(weight, scale, op=op)
    except ConfigError as error:
        raise BundleError(f"{name}: {error.problem}", hint=_MEND) from None
    order = left.pop(f"{name}.order", None)
    if order is None:
        return values
    natural = np.empty_like(values)
    natural[order] = values
    return natural


def dequantise_int4(
    packed: NDArray[np.uint8], scale: NDArray[np.floating[Any]], shape: Shape
) -> FloatArray:
    """Matrix ``[in, out]`` fp64 from packed int4 ``[in * out / 2]`` and ``scale [in / block, out]``.

    Two signed values a byte, low nibble first, row-major; a scale serves ``block`` inputs.
    """
    rows, columns = shape
    nibbles = np.empty(rows * columns, dtype=np.int8)
    nibbles[0::2] = packed & 0x0F
    nibbles[1::2] = packed >> 4
    signed = np.where(nibbles > 7, nibbles - 16, nibbles).reshape(shape)  # [in, out]
    block = rows // scale.shape[0]
    return signed * np.repeat(scale.astype(np.float64), block, axis=0)


def _dequantised(name: str, parts: Mapping[str, NDArray[Any]], shape: Shape) -> NDArray[Any]:
    """The matrix from its parts, checked against each other and ``shape``."""
    rows, columns = shape
    scale = parts.get("scale")
    packed = parts.get("int4", parts.get("int8"))
    assert packed is not None
    size, dtype = ((rows * columns / 2,), np.uint8) if "int4" in parts else (shape, np.int8)
    groups = 0 if scale is None or scale.ndim != 2 else scale.shape[0]
    fits = (
        scale is not None
        and packed.shape == size
        and packed.dtype == dtype
        and scale.shape[1:] == (columns,)
        and groups > 0
        and rows % groups == 0
        and parts.get("zero", np.empty(groups * columns // 2)).size * 2 == groups * columns
        and parts.get("order", np.empty(rows)).shape == (rows,)
    )
    if scale is None or not fits:
        found = "no scale" if scale is None else f"scale {list(scale.shape)}"
        kind = "int4" if "int4" in parts else "int8"
        raise BundleError(
            f"{name}.{kind} {packed.dtype} {list(packed.shape)} with {found} "
            f"does not unpack to {list(shape)}",
            hint=_MEND,
        )
    block = rows // groups
    if "int8" in parts:
        values: FloatArray = packed * np.repeat(scale.astype(np.float64), block, axis=0)
    else:
        values = dequantise_int4(packed, scale, shape)
    if "zero" in parts:
        zeros = dequantise_int4(parts["zero"], scale, (groups, columns))
        values = values - np.repeat(zeros, block, axis=0)
    if "order" in parts:
        natural = np.empty_like(values)
        natural[parts["order"]] = values
        return natural
    return values


def load_tensors(path: Path) -> dict[str, NDArray[Any]]:
    """Every tensor of a safetensors file by name, padding left out.

    Raises ``BundleError`` when it is unreadable.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise BundleError(f"{path} cannot be read: {error}", hint=_MEND) from None
    return {name: tensor for name, tensor in tensors.items() if not name.startswith(PAD_PREFIX)}
