"""What one slot holds: tokens, committed lengths, and the used part of every state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from selfdraft.manifest import BLOCK_TOKENS, Dim, Manifest

PrefillAttention = Literal["dense", "sparse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotCache:
    """A slot between requests. ``arrays`` may be views: copy or write them before the next step."""

    tokens: tuple[int, ...]
    """Prompt and reply so far; the last one may be in no cache yet."""
    cached: int
    """Leading tokens in the backbone's cache."""
    drafter_cached: int
    """Rows of the MTP head's cache."""
    prompt_rows: int
    """Leading rows that a prefill computed; later ones come from decode steps."""
    prefill: PrefillAttention
    """How prompts were computed."""
    arrays: Mapping[str, NDArray[Any]]
    """Each state by the manifest's name, without the slot axis, cut to the length used."""

    @property
    def lengths(self) -> dict[str, int]:
        """Committed length of each graph's states."""
        return {"backbone": self.cached, "mtp": self.drafter_cached}


def used_part(
    array: NDArray[Any], dims: tuple[Dim, ...], *, slot: int, length: int
) -> NDArray[Any]:
    """View of one slot's first ``length`` tokens in a state with the symbolic shape ``dims``.

    A block of which a part is used is used; a state without tokens (recurrent) is used whole.
    """
    parts: dict[Dim, int | slice] = {
        "batch": slot,
        "capacity": slice(length),
        "blocks": slice(-(-length // BLOCK_TOKENS)),
    }
    return array[tuple(parts.get(dim, slice(None)) for dim in dims)]


def used_parts(
    manifest: Manifest,
    arrays: Mapping[str, NDArray[Any]],
    *,
    slot: int,
    lengths: Mapping[str, int],
) -> dict[str, NDArray[Any]]:
    """Views of one slot's states by name, cut to ``lengths`` (tokens, by graph)."""
    return {
        state.name: used_part(arrays[state.name], state.shape, slot=slot, length=lengths[graph])
        for graph, spec in manifest.graphs.items()
        for state in spec.states
    }


def write_parts(parts: Mapping[str, NDArray[Any]], values: Mapping[str, NDArray[Any]]) -> None:
    """Fill views made by ``used_part``; floats may change their width."""
    for name, part in parts.items():
        assert part.shape == values[name].shape, (name, part.shape, values[name].shape)
        np.copyto(part, values[name], casting="same_kind")
