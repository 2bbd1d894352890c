"""4-bit linears of published checkpoints: AWQ, GPTQ and compressed-tensors.

A checkpoint stores such a linear as several tensors beside each other. ``find_packed`` turns each
into one virtual tensor ``<module>.weight [out, in]``; ``unpack`` gives its exact codes:
value = (code - zero) * scale, with code and zero in -8..7 and the scale of the input's group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from selfdraft.errors import ConfigError
from selfdraft.export.config import ConfigKeys, not_supported
from selfdraft.export.safetensors_file import StoredTensor

Method = Literal["awq", "gptq", "compressed-tensors"]
Read = Callable[[str], NDArray[Any]]
"""Reads a tensor as it is stored (bf16 as its raw 16 bits)."""
Tensors = Mapping[str, StoredTensor]

BITS = 4
PER_WORD = 32 // BITS
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Column of each nibble of a word, low nibble first (AutoAWQ, version "gemm")."""
PARTS: dict[Method, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "awq": ("qweight", ("scales", "qzeros"), ()),
    "gptq": ("qweight", ("scales", "qzeros"), ("g_idx",)),
    "compressed-tensors": (
        "weight_packed",
        ("weight_scale",),
        ("weight_shape", "weight_zero_point", "weight_g_idx"),
    ),
}
"""For each method the tensor that tells, those it needs and those it may have."""
BYTES_HINT = "fetch the checkpoint again, or use it in bf16, fp16 or fp32"


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """What ``quantization_config`` says about every packed linear."""

    method: Method
    zeros_plus_one: bool = False
    """GPTQ's first format stores each zero point less one."""
    symmetric: bool = False
    """Every zero point is the middle of the range; checked when the weights are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedLinear:
    """One packed linear: where its parts are, and its sizes."""

    module: str
    packing: Packing
    parts: Mapping[str, str]
    """Tensor names by their kind: qweight, scales, ..."""
    outputs: int
    inputs: int
    groups: int
    order: bytes | None
    """The act-order (int64 ``[in]`` as bytes); None: inputs are in order."""

    @property
    def has_zero(self) -> bool:
        """Whether zero points are stored."""
        if self.packing.method == "compressed-tensors":
            return "weight_zero_point" in self.parts
        return not self.packing.symmetric

    @property
    def group(self) -> int:
        """Inputs that share a scale."""
        return self.inputs // self.groups


@dataclass(frozen=True, slots=True, kw_only=True)
class Codes:
    """A linear unpacked; groups are consecutive inputs, after ``order`` where it is given."""

    codes: NDArray[np.int8]
    """``[in, out]``, -8..7."""
    scales: NDArray[np.float32]
    """``[groups, out]``, exactly as published."""
    zeros: NDArray[np.int8] | None
    """``[groups, out]``; None: all are 0."""
    order: NDArray[np.int64] | None
    """``[in]``: row i of ``codes`` belongs to input ``order[i]``; None: in order."""

    def values(self) -> NDArray[np.float32]:
        """The matrix ``[in, out]`` in its own input order, exact in float32."""
        groups = len(self.scales)
        codes = self.codes.reshape(groups, -1, self.codes.shape[1]).astype(np.float32)
        if self.zeros is not None:
            codes -= self.zeros[:, None, :]
        codes *= self.scales[:, None, :]
        rows = codes.reshape(self.codes.shape)
        if self.order is None:
            return rows
        natural = np.empty_like(rows)
        natural[self.order] = rows
        return natural


def read_packing(config: ConfigKeys) -> Packing | None:
    """The packing of a checkpoint, or None where nothing is quantised.

    Raises ``ConfigError`` for a method, width or format that is not imported.
    """
    section = config.section("quantization_config")
    if section is None or not section.values:
        return None
    method = section.text("quant_method")
    if method == "awq":
        _expect(section, "bits", section.integer("bits"), BITS)
        _expect(section, "version", (section.text("version") or "gemm").lower(), "gemm")
        return Packing(method="awq")
    if method == "gptq":
        _expect(section, "bits", section.integer("bits"), BITS)
        form = section.text("checkpoint_format") or "gptq"
        if form not in ("gptq", "gptq_v2"):
            raise not_supported(f"checkpoint_format {form!r}", hint="known: gptq, gptq_v2")
        symmetric = section.flag("sym") or False
        return Packing(method="gptq", zeros_plus_one=form == "gptq", symmetric=symmetric)
    if method == "compressed-tensors":
        _check_groups(section)
        return Packing(method="compressed-tensors")
    raise not_supported(
        f"quantization_config (method {method or 'unknown'!r})",
        hint="known: awq, gptq, compressed-tensors W4A16; else use bf16, fp16 or fp32 weights",
    )


def find_packed(packing: Packing, tensors: Tensors, read: Read) -> dict[str, PackedLinear]:
    """Every packed linear by the name ``<module>.weight``; of the values only act-orders are read.

    Raises ``ConfigError`` naming a linear whose parts are missing or do not fit each other.
    """
    kind, needed, optional = PARTS[packing.method]
    found = {}
    for name in tensors:
        module, _, last = name.rpartition(".")
        if last != kind:
            continue
        parts = {part: f"{module}.{part}" for part in (kind, *needed, *optional)}
        for part in needed:
            if parts[part] not in tensors:
                raise ConfigError(
                    f"tensor {name!r} is packed in 4 bits, but {parts[part]!r} is missing",
                    hint="its values cannot be known without it: " + BYTES_HINT,
                )
        parts = {part: full for part, full in parts.items() if full in tensors}
        shapes = {part: tensors[full].shape for part, full in parts.items()}
        linear = _linear(packing, module, parts, shapes)
        g_idx = parts.get("g_idx") or parts.get("weight_g_idx")
        order = _order(linear, read(g_idx)) if g_idx else None
        if order is not None:
            linear = replace(linear, order=order.tobytes())
        found[f"{module}.weight"] = linear
    return found


def part_names(packed: Mapping[str, PackedLinear]) -> set[str]:
    """Tensors of the checkpoint that packed linears consist of."""
    return {name for linear in packed.values() for name in linear.parts.values()}


def unpack(linear: PackedLinear, read: Read, *, bf16: bool) -> Codes:
    """Codes, scales and zero points of a linear. ``bf16``: ``read`` gives scales as raw bf16."""
    raw = {part: read(name) for part, name in linear.parts.items()}
    if linear.packing.method == "compressed-tensors":
        return _compressed(linear, raw, bf16=bf16)
    if linear.packing.method == "awq":
        codes = _nibbles(raw["qweight"])[..., _inverse(AWQ_ORDER)].reshape(linear.inputs, -1)
        zeros = _nibbles(raw["qzeros"])[..., _inverse(AWQ_ORDER)].reshape(linear.groups, -1)
        order = None
    else:
        words = _nibbles(raw["qweight"])  # [in / 8, out, 8]
        codes = words.transpose(0, 2, 1).reshape(linear.inputs, linear.outputs)
        zeros = _nibbles(raw["qzeros"]).reshape(linear.groups, linear.outputs)
        if linear.packing.zeros_plus_one:
            zeros = (zeros + 1) & 0xF
        order = _known_order(linear)
    if linear.packing.symmetric and (zeros != 8).any():
        raise ConfigError(
            f"tensor {linear.parts['qzeros']!r} has zero points beside the middle, but "
            "quantization_config says sym = true",
            hint="set sym to false in config.json: the zero points are then kept",
        )
    return _codes(codes - 8, _widen(raw["scales"], bf16=bf16), zeros - 8, order)


def _compressed(linear: PackedLinear, raw: Mapping[str, NDArray[Any]], *, bf16: bool) -> Codes:
    codes = _nibbles(raw["weight_packed"]).reshape(linear.outputs, -1)[:, : linear.inputs] - 8
    zeros = np.zeros((linear.groups, linear.outputs), dtype=np.int8)
    if "weight_zero_point" in raw:  # packed along the outputs
        words = _nibbles(raw["weight_zero_point"])  # [out / 8, groups, 8]
        zeros = words.transpose(0, 2, 1).reshape(-1, linear.groups)[: linear.outputs].T - 8
    scales = _widen(raw["weight_scale"], bf16=bf16).T
    return _codes(codes.T, scales, zeros, _known_order(linear))


def _codes(
    codes: NDArray[np.int8],
    scales: NDArray[np.float32],
    zeros: NDArray[np.int8],
    order: NDArray[np.int64] | None,
) -> Codes:
    ordered = codes if order is None else codes[order]
    return Codes(
        codes=np.ascontiguousarray(ordered, dtype=np.int8),
        scales=np.ascontiguousarray(scales, dtype=np.float32),
        zeros=np.ascontiguousarray(zeros, dtype=np.int8) if zeros.any() else None,
        order=order,
    )


def _nibbles(words: NDArray[Any]) -> NDArray[np.int8]:
    """``[..., 8]`` values 0..15 of 32-bit words, low nibble first."""
    shifts = np.arange(PER_WORD, dtype=np.uint32) * BITS
    spread = words.astype(np.int32).view(np.uint32)[..., None] >> shifts
    nibbles: NDArray[np.int8] = (spread & np.uint32(0xF)).astype(np.int8)
    return nibbles


def _inverse(order: tuple[int, ...]) -> list[int]:
    """Nibble that holds each column: nibble n of a word belongs to column ``order[n]``."""
    return [order.index(column) for column in range(len(order))]


def _known_order(linear: PackedLinear) -> NDArray[np.int64] | None:
    return None if linear.order is None else np.frombuffer(linear.order, dtype=np.int64)


def _order(linear: PackedLinear, g_idx: NDArray[Any]) -> NDArray[np.int64] | None:
    """Inputs sorted by their group, or None where they are in order."""
    groups = g_idx.astype(np.int64)
    if np.array_equal(groups, np.arange(linear.inputs) // linear.group):
        return None
    counts = np.bincount(groups[groups >= 0], minlength=linear.groups)
    if len(counts) != linear.groups or (counts != linear.group).any():
        raise not_supported(
            f"act-order of {linear.module!r}, whose groups are not {linear.group} inputs each,",
            hint="use the checkpoint in bf16, fp16 or fp32",
        )
    return np.argsort(groups, kind="stable").astype(np.int64)


def _widen(scales: NDArray[Any], *, bf16: bool) -> NDArray[np.float32]:
    wide = scales.astype(np.uint32) << np.uint32(16) if bf16 else scales.astype(np.float32)
    return wide.view(np.float32)


def _linear(
    packing: Packing,
    module: str,
    parts: Mapping[str, str],
    shapes: Mapping[str, tuple[int, ...]],
) -> PackedLinear:
    kind, needed, _ = PARTS[packing.method]
    flat = [part for part in (kind, *needed) if len(shapes[part]) != 2 or 0 in shapes[part]]
    if flat:
        part = flat[0]
        raise ConfigError(
            f"tensor {parts[part]!r} has shape {list(shapes[part])}, expected a matrix",
            hint=BYTES_HINT,
        )
    first, second = shapes[kind]
    if packing.method == "awq":
        inputs, outputs = first, second * PER_WORD
    elif packing.method == "gptq":
        inputs, outputs = first * PER_WORD, second
    else:
        inputs, outputs = second * PER_WORD, first
    if packing.method == "compressed-tensors":
        groups, expected = shapes["weight_scale"][1], {"weight_scale": outputs}
        fits = shapes["weight_scale"][0] == outputs
        if "weight_zero_point" in shapes:
            fits &= shapes["weight_zero_point"] == (-(-outputs // PER_WORD), groups)
    else:
        groups = shapes["scales"][0]
        expected = {"scales": outputs, "qzeros": outputs // PER_WORD}
        fits = all(shapes[part] == (groups, size) for part, size in expected.items())
    if not fits or inputs % groups:
        shown = {parts[part]: list(shape) for part, shape in shapes.items()}
        raise ConfigError(f"packed tensors do not fit each other: {shown}", hint=BYTES_HINT)
    return PackedLinear(
        module=module,
        packing=packing,
        parts=parts,
        outputs=outputs,
        inputs=inputs,
        groups=groups,
        order=None,
    )


def _expect(section: ConfigKeys, key: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise not_supported(f"{section.where} {key} = {found!r}", hint=f"only {wanted} is known")


def _check_groups(section: ConfigKeys) -> None:
    _expect(section, "format", section.text("format"), "pack-quantized")
    groups = section.section("config_groups")
    for name in groups.values if groups else ():
        assert groups is not None
        group = groups.section(name)
        weights = group.section("weights") if group else None
        if weights is None:
            continue
        _expect(weights, "num_bits", weights.integer("num_bits"), BITS)
        _expect(weights, "type", weights.text("type") or "int", "int")
        if group is not None and group.values.get("input_activations"):
            raise not_supported("quantised activations", hint="use a W4A16 checkpoint")
