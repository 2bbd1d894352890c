"""The embedding table on the device: read in pieces, held once, bound to both graphs."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from selfdraft.errors import BundleError
from selfdraft.manifest import Manifest, TensorSpec
from selfdraft.runtime.trt.gpu import DeviceBuffer, Gpu

PIECE_BYTES = 32 << 20


def upload_embedding(
    gpu: Gpu, bundle: Path, manifest: Manifest, wanted: TensorSpec
) -> DeviceBuffer:
    """The table of ``bundle`` in device memory. Raises ``BundleError`` for another type or shape."""
    from safetensors import safe_open

    dtype = np.dtype(wanted.dtype)
    with safe_open(str(bundle / manifest.embedding_file), framework="np") as file:
        table = file.get_slice("embedding") if "embedding" in file.keys() else None  # noqa: SIM118
        found = "missing" if table is None else f"{table.get_dtype()} {table.get_shape()}"
        kinds = {"float32": "F32", "float16": "F16"}
        if table is None or found != f"{kinds[wanted.dtype]} {list(wanted.shape)}":
            raise BundleError(
                f"{manifest.embedding_file}: embedding is {found}, the graphs take "
                f"{wanted.dtype} {list(wanted.shape)}",
                hint="export the bundle again",
            )
        rows, width = manifest.model.vocab_size, manifest.model.hidden_size
        buffer = gpu.allocate(rows * width * dtype.itemsize)
        step = max(PIECE_BYTES // (width * dtype.itemsize), 1)
        for start in range(0, rows, step):
            piece = np.ascontiguousarray(table[start : min(start + step, rows)])
            gpu.store(buffer.address + start * width * dtype.itemsize, piece)
    return buffer
