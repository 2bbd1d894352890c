"""Trained weights back into a checkpoint's own names, layout and dtype.

The inverse of ``export.weight_sources``: a bundle's tensor is its sources joined, transposed, ordered,
offset and scaled. Tensors keep dtype and size, so each is written over the old one.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from selfdraft.export.checkpoint import Checkpoint
from selfdraft.export.config import not_supported
from selfdraft.export.families.base import WeightRule

TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}


def source_values(rule: WeightRule, target: Tensor) -> dict[str, Tensor]:
    """Tensors of the checkpoint by name, torch layout, from a bundle's ``target``."""
    values = target / rule.factor - rule.offset
    if rule.layout == "matrix":
        values = values.T
    found, first = {}, 0
    for index, (name, shape) in enumerate(zip(rule.sources, rule.source_shapes, strict=True)):
        part = values[first : first + shape[0]]
        first += shape[0]
        order = rule.head_orders[index] if rule.head_orders else None
        if order is not None:
            heads = part.reshape(-1, len(order), *part.shape[1:])
            back = torch.empty_like(heads)
            back[:, list(order)] = heads
            part = back.reshape(part.shape)
        found[name] = part.reshape(shape)
    return found


def raw_bytes(values: Tensor, dtype: str) -> bytes:
    """Values as a safetensors file stores them; to nearest, ties to even."""
    stored = values.detach().cpu().to(TYPES[dtype]).contiguous()
    flat: NDArray[np.uint8] = stored.view(torch.uint8).numpy()
    return flat.tobytes()


def check_writable(checkpoint: Checkpoint, rules: Mapping[str, WeightRule]) -> None:
    """Raise ``ConfigError`` where a tensor of the head is in a type that cannot be trained."""
    for rule in rules.values():
        for name in rule.sources:
            if checkpoint.dtype(name) not in TYPES:
                raise not_supported(
                    f"aligning tensor {name!r}, which is stored as {checkpoint.dtype(name)},",
                    hint="align the checkpoint in bf16, fp16 or fp32, then quantise it",
                )


def write_tensors(
    checkpoint: Checkpoint, rules: Mapping[str, WeightRule], weights: Mapping[str, Tensor]
) -> None:
    """Write ``weights`` (bundle names) over the tensors that ``checkpoint`` has for them."""
    for target, value in weights.items():
        for name, part in source_values(rules[target], value).items():
            file, entry = checkpoint.tensors[name]
            with file.open("r+b") as opened:
                opened.seek(entry.offset)
                opened.write(raw_bytes(part, entry.dtype))
