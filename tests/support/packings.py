"""4-bit linears packed as AutoAWQ, AutoGPTQ and compressed-tensors publish them.

Written from the formats' descriptions, value by value; knows nothing of the importer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
CONFIGS: dict[str, dict[str, Any]] = {
    "awq": {
        "quant_method": "awq",
        "bits": 4,
        "group_size": 32,
        "zero_point": True,
        "version": "gemm",
    },
    "gptq": {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": 32,
        "desc_act": False,
        "sym": False,
        "checkpoint_format": "gptq",
    },
    "compressed-tensors": {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "ignore": ["lm_head"],
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "input_activations": None,
                "weights": {
                    "num_bits": 4,
                    "type": "int",
                    "symmetric": True,
                    "strategy": "group",
                    "group_size": 32,
                },
            }
        },
    },
}


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One linear: its packed tensors by suffix, and the values ``[out, in]`` they stand for."""

    tensors: dict[str, NDArray[Any]]
    values: NDArray[np.float32]


def sample(
    method: str,
    outputs: int,
    inputs: int,
    *,
    seed: int,
    group: int = 32,
    symmetric: bool = False,
    act_order: int | None = None,
    plus_one: bool = True,
) -> Sample:
    """Random codes, zero points and fp16 scales; ``act_order`` is the seed of an order."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 16, (inputs, outputs))
    groups = inputs // group
    # GPTQ's first format keeps zero - 1 in four bits: 0 would wrap.
    zeros = np.full((groups, outputs), 8) if symmetric else rng.integers(1, 16, (groups, outputs))
    scales = (rng.random((groups, outputs)) * 0.02 + 0.01).astype(np.float16)
    g_idx = np.arange(inputs) // group
    if act_order is not None:
        g_idx = np.random.default_rng(act_order).permutation(g_idx)
    values = (codes - zeros[g_idx]).astype(np.float64) * scales[g_idx].astype(np.float64)
    if method == "awq":
        tensors = {
            "qweight": _awq_words(codes),
            "qzeros": _awq_words(zeros),
            "scales": scales,
        }
    elif method == "gptq":
        tensors = {
            "qweight": _words(codes, axis=0),
            "qzeros": _words(zeros - 1 if plus_one else zeros, axis=1),
            "scales": scales,
            "g_idx": g_idx.astype(np.int32),
        }
    else:
        tensors = {
            "weight_packed": _words(codes.T, axis=1),
            "weight_scale": np.ascontiguousarray(scales.T),
            "weight_shape": np.array([outputs, inputs], dtype=np.int64),
        }
        if not symmetric:
            tensors["weight_zero_point"] = _words(zeros.T, axis=0)
        if act_order is not None:
            tensors["weight_g_idx"] = g_idx.astype(np.int32)
    return Sample(tensors=tensors, values=values.T.astype(np.float32))


def _words(values: NDArray[Any], *, axis: int) -> NDArray[np.int32]:
    """Eight values along ``axis`` to a word, the first in the low bits."""
    moved = np.moveaxis(values, axis, -1)
    words = np.zeros((*moved.shape[:-1], moved.shape[-1] // 8), dtype=np.int64)
    for index in range(moved.shape[-1]):
        words[..., index // 8] |= moved[..., index].astype(np.int64) << (4 * (index % 8))
    packed = words.astype(np.uint32).view(np.int32)
    return np.ascontiguousarray(np.moveaxis(packed, -1, axis))


def _awq_words(values: NDArray[Any]) -> NDArray[np.int32]:
    """Eight neighbouring columns to a word, interleaved: columns 0, 2, 4, 6, 1, 3, 5, 7."""
    rows, columns = values.shape
    words = np.zeros((rows, columns // 8), dtype=np.int64)
    for word in range(columns // 8):
        for nibble, column in enumerate(AWQ_ORDER):
            words[:, word] |= values[:, word * 8 + column].astype(np.int64) << (4 * nibble)
    return words.astype(np.uint32).view(np.int32)


def pack_checkpoint(
    tensors: dict[str, NDArray[Any]],
    method: str,
    *,
    symmetric: bool = False,
    act_order: bool = False,
    kept: tuple[str, ...] = ("lm_head", "embed_tokens", "norm", "mtp"),
) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[np.float32]]]:
    """Every linear replaced by a packed sample, but those whose name has a text of ``kept``.

    Returns the packed tensors and the same checkpoint in float. Linears of one input share their
    act-order, as calibration gives it.
    """
    packed: dict[str, NDArray[Any]] = {}
    plain: dict[str, NDArray[np.float32]] = {}
    for seed, (name, array) in enumerate(tensors.items()):
        module, _, last = name.rpartition(".")
        if last != "weight" or array.ndim != 2 or any(text in name for text in kept):
            packed[name] = plain[name] = array
            continue
        order = _order_seed(module) if act_order else None
        made = sample(method, *array.shape, seed=seed, symmetric=symmetric, act_order=order)
        packed |= {f"{module}.{part}": tensor for part, tensor in made.tensors.items()}
        plain[name] = made.values
    return packed, plain


def _order_seed(module: str) -> int:
    """One seed for the linears that read the same activations."""
    same = {"q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv", "gate_proj": "mlp", "up_proj": "mlp"}
    prefix, _, last = module.rpartition(".")
    return sum(f"{prefix}.{same.get(last, last)}".encode())
