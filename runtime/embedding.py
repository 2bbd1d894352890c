"""The embedding table of a bundle as its graphs and the NumPy oracle take it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfdraft.embedding_table import INPUT_TYPES, TABLE, fp32_rows, stored_names
from selfdraft.errors import BundleError
from selfdraft.manifest import Manifest
from selfdraft.runtime.weights import load_tensors

Arrays = dict[str, NDArray[Any]]
_MEND = "export the bundle again with: selfdraft export CHECKPOINT -o BUNDLE"


def load_table(bundle: Path, manifest: Manifest) -> Arrays:
    """The graph inputs that hold the embedding: ``[V, H]`` in its stored type (bf16 as uint16), and
    for int8 ``embedding_scale [V]``.

    Raises ``BundleError`` for a file that holds something else.
    """
    kind = manifest.precision.embedding
    names, tensors = stored_names(kind), load_tensors(bundle / manifest.embedding_file)
    rows, width = manifest.model.vocab_size, manifest.model.hidden_size
    carried = {"bfloat16": "uint16"}.get(INPUT_TYPES[kind], INPUT_TYPES[kind])
    wanted = {
        name: ("float32", (rows,)) if key != TABLE else (carried, (rows, width))
        for key, name in names.items()
    }
    found = {name: (tensor.dtype.name, tensor.shape) for name, tensor in tensors.items()}
    if found != wanted:
        shown = [f"{n} {t} {list(s)}" for n, (t, s) in sorted(found.items())] or ["nothing"]
        expected = [f"{n} {t} {list(s)}" for n, (t, s) in wanted.items()]
        raise BundleError(
            f"{manifest.embedding_file} holds {', '.join(shown)}, the manifest asks for "
            f"{', '.join(expected)}",
            hint=_MEND,
        )
    return {key: tensors[name] for key, name in names.items()}


def table_values(bundle: Path, manifest: Manifest) -> NDArray[np.float32]:
    """The whole table ``[V, H]`` as fp32. Raises as ``load_table`` does."""
    names = stored_names(manifest.precision.embedding)
    return fp32_rows({names[key]: part for key, part in load_table(bundle, manifest).items()})
