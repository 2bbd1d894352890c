"""The C largest logits of each row, sorted, with ties decided."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def top_candidates(
    rows: NDArray[np.floating[Any]], count: int
) -> tuple[NDArray[np.floating[Any]], NDArray[np.int64]]:
    """Values and ids ``[..., C]`` of the ``count`` largest entries of each row ``[..., V]``.

    Values descend; equal values stand in ascending id order, at rank C too (the lower id is in).
    C is ``min(count, V)``.
    """
    num_kept = min(count, rows.shape[-1])
    flat = rows.reshape(-1, rows.shape[-1])  # [R, V]
    ids = np.empty((len(flat), num_kept), dtype=np.int64)
    for index, row in enumerate(flat):
        ids[index] = _top_ids(row, num_kept)
    values = np.take_along_axis(flat, ids, axis=-1)
    shape = (*rows.shape[:-1], num_kept)
    return values.reshape(shape), ids.reshape(shape)


def _top_ids(row: NDArray[np.floating[Any]], count: int) -> NDArray[np.int64]:
    if count == len(row):
        return np.argsort(-row, kind="stable")
    # argpartition alone would choose freely among values equal to the last one.
    last = np.partition(row, len(row) - count)[len(row) - count]
    above = np.flatnonzero(row > last)
    equal = np.flatnonzero(row == last)[: count - len(above)]
    ids = np.sort(np.concatenate([above, equal]))
    return ids[np.argsort(-row[ids], kind="stable")]
