"""Weights by their bundle names, one at a time: of a checkpoint, or of a written weights file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from selfdraft.embedding_table import fp32_rows
from selfdraft.export.checkpoint import Checkpoint
from selfdraft.export.families.base import ModelPlan
from selfdraft.export.stored_matrix import stored_values
from selfdraft.export.weight_plan import EMBEDDING, WeightItem, WeightsPlan, head_rule
from selfdraft.export.weight_sources import input_major, output_major

HEAD_ROWS = 256
"""Inputs of a stored head that are unpacked at a time."""
PARTS = ("int4", "int8", "bf16", "scale", "zero", "strips", "strip_scale", "order")

Array = NDArray[np.float32]


class WeightReader(Protocol):
    """Gives weights as float32."""

    def tensor(self, name: str) -> Array:
        """A vector, or a matrix ``[in, out]``."""
        ...

    def rows(self, name: str) -> Iterator[tuple[slice, Array]]:
        """A matrix in chunks of its inputs."""
        ...

    def draft_ids(self) -> NDArray[np.int64]:
        """Tokens of a trimmed draft head."""
        ...


class EmbeddingReader(Protocol):
    """Gives rows of the embedding table."""

    def embedding_rows(self, ids: NDArray[np.int64]) -> Array:
        """Rows ``ids`` ``[len(ids), H]``."""
        ...


class CheckpointReader:
    """What a checkpoint's tensors become, before anything is quantised."""

    def __init__(self, checkpoint: Checkpoint, model: ModelPlan, weights: WeightsPlan) -> None:
        self._checkpoint, self._draft_ids = checkpoint, weights.draft_ids
        self._items = {rule.target: WeightItem(rule=rule) for rule in model.rules}
        head = head_rule(model)
        self._items.setdefault(head.target, WeightItem(rule=head))
        for item in weights.items:
            own = WeightItem(rule=item.rule, rows=item.rows)
            self._items.setdefault(item.rule.target, own)

    def tensor(self, name: str) -> Array:
        item = self._items[name]
        if item.rule.layout == "matrix":
            return np.concatenate([piece for _, piece in self.rows(name)])
        # Checkpoints keep an axis of one in a depthwise convolution.
        return np.concatenate(list(output_major(self._checkpoint, item))).reshape(item.shape)

    def shape(self, name: str) -> tuple[int, ...]:
        """Of the weight, ``[in, out]`` for matrices."""
        return self._items[name].shape

    def rows(self, name: str) -> Iterator[tuple[slice, Array]]:
        first = 0
        for piece in input_major(self._checkpoint, self._items[name]):
            yield slice(first, first + len(piece)), piece
            first += len(piece)

    def draft_ids(self) -> NDArray[np.int64]:
        assert self._draft_ids is not None
        return self._draft_ids

    def embedding_rows(self, ids: NDArray[np.int64]) -> Array:
        """Rows ``ids`` of the embedding ``[len(ids), H]``."""
        item = WeightItem(rule=self._items[EMBEDDING].rule, rows=ids)
        return np.concatenate(list(output_major(self._checkpoint, item)))


class StoredReader:
    """What a weights file holds, unpacked; ``model`` heads that are tied come from ``fallback``."""

    def __init__(self, path: Path, fallback: CheckpointReader) -> None:
        from safetensors import safe_open

        opened: Any = safe_open  # untyped
        self._file = opened(str(path), "numpy")
        self._names = set(self._file.keys())
        self._fallback = fallback

    def tensor(self, name: str) -> Array:
        if name in self._names:
            found: Array = self._file.get_tensor(name).astype(np.float32, copy=False)
            return found
        parts = [f"{name}.{part}" for part in PARTS if f"{name}.{part}" in self._names]
        if not parts:
            return self._fallback.tensor(name)  # a tied head
        shape = self._fallback.shape(name)
        tensors = {part: self._file.get_tensor(part) for part in parts}
        return stored_values(tensors, name, shape=shape)

    def rows(self, name: str) -> Iterator[tuple[slice, Array]]:
        own = {name, f"{name}.bf16", f"{name}.scale", f"{name}.strips"}
        if not own & self._names:
            yield from self._fallback.rows(name)
            return
        if {name, f"{name}.bf16", f"{name}.order", f"{name}.strips"} & self._names:
            whole = self.tensor(name)
            yield slice(0, len(whole)), whole
            return
        yield from self._unpacked(name)

    def draft_ids(self) -> NDArray[np.int64]:
        return self._fallback.draft_ids()

    def _unpacked(self, name: str) -> Iterator[tuple[slice, Array]]:
        """Chunks of whole groups, so that a head is never unpacked at once."""
        scales = self._file.get_tensor(f"{name}.scale")
        kind = "int8" if f"{name}.int8" in self._names else "int4"
        codes = self._file.get_tensor(f"{name}.{kind}").reshape(-1)
        columns = scales.shape[1]
        width = columns if kind == "int8" else columns // 2
        block = len(codes) // width // len(scales)
        zero = f"{name}.zero"
        zeros = self._file.get_tensor(zero) if zero in self._names else None
        step = max(1, HEAD_ROWS // block)
        for first in range(0, len(scales), step):
            last = min(first + step, len(scales))
            inputs = slice(first * block, last * block)
            part: dict[str, NDArray[Any]] = {f"{name}.scale": scales[first:last]}
            own = codes[inputs.start * width : inputs.stop * width]
            part[f"{name}.{kind}"] = own.reshape(-1, columns) if kind == "int8" else own
            if zeros is not None:
                part[zero] = zeros[first * columns // 2 : last * columns // 2]
            yield inputs, stored_values(part, name)


class StoredTable:
    """Rows of the embedding as an embedding file holds them."""

    def __init__(self, path: Path) -> None:
        from safetensors import safe_open

        opened: Any = safe_open  # untyped
        file = opened(str(path), "numpy")
        self._parts = {
            name: file.get_slice(name) for name in set(file.keys()) if name.startswith(EMBEDDING)
        }

    def embedding_rows(self, ids: NDArray[np.int64]) -> Array:
        """Rows ``ids`` of the embedding ``[len(ids), H]``."""
        kept = {
            name: np.concatenate([part[int(i) : int(i) + 1] for i in ids])
            for name, part in self._parts.items()
        }
        return fp32_rows(kept)
