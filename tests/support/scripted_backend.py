"""A backend without weights: the logits of a row are a function of the tokens up to it.

``script`` gives the token that a history prefers; the others have smaller logits that depend on
the history too, so that sampled text varies. The MTP head knows the script, and errs where a hash
of the history says so. States are the tokens themselves, written where the loop says they go, so a
wrong length or a row that was not overwritten shows in the text.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfdraft.manifest import Manifest
from selfdraft.runtime.backend import BackboneOutput, MtpOutput, Step

Script = Callable[[tuple[int, ...]], int]
EMPTY = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedStates:
    """Token at each place of both caches, ``[B, capacity]``."""

    batch: int
    capacity: int
    backbone: NDArray[np.int64]
    mtp: NDArray[np.int64]

    @property
    def num_bytes(self) -> int:
        return self.backbone.nbytes + self.mtp.nbytes


class ScriptedBackend:
    """``margin`` is the logit of the preferred token; the others lie between 0 and 1.

    ``errors`` is the share of drafts that are wrong.
    """

    name = "scripted"

    def __init__(
        self,
        tiny: ModuleType,
        script: Script,
        *,
        vocab_size: int = 16,
        margin: float = 3.0,
        errors: float = 0.0,
        eos_ids: tuple[int, ...] = (),
        candidates: int = 8,
        context_length: int = 256,
    ) -> None:
        self._script = script
        self._margin = margin
        self._errors = errors
        self._histories: list[tuple[int, ...]] = [()]
        self._rows: dict[tuple[int, ...], NDArray[np.float64]] = {}
        self.manifest: Manifest = tiny.manifest(
            tiny.model_spec(vocab_size=vocab_size),
            eos_ids=eos_ids,
            candidates=candidates,
            context_length=context_length,
        )

    def logits(self, history: tuple[int, ...]) -> NDArray[np.float64]:
        """Logits ``[V]`` of the token after ``history``."""
        if history not in self._rows:
            rng = np.random.default_rng(_hash(history))
            row = rng.random(self.manifest.model.vocab_size)
            row[self._script(history)] += self._margin
            self._rows[history] = row
        return self._rows[history]

    def allocate(self, *, batch: int, capacity: int) -> ScriptedStates:
        empty = np.full((2, batch, capacity), EMPTY, dtype=np.int64)
        return ScriptedStates(batch=batch, capacity=capacity, backbone=empty[0], mtp=empty[1])

    def run_backbone(
        self, states: ScriptedStates, step: Step, input_ids: NDArray[np.int64]
    ) -> BackboneOutput:
        batch, num_rows = input_ids.shape
        hidden = np.zeros((batch, num_rows, 1), dtype=np.int64)
        rows = np.zeros((batch, num_rows, self.manifest.model.vocab_size))
        for slot in range(batch):
            start, count = int(step.past_len[slot]), int(step.row_count[slot])
            states.backbone[slot, start : start + count] = input_ids[slot, :count]
            for row in range(count):
                history = tuple(states.backbone[slot, : start + row + 1].tolist())
                assert EMPTY not in history, "a row that was never computed is attended to"
                hidden[slot, row, 0] = self._remember(history)
                rows[slot, row] = self.logits(history)
        logits = np.take_along_axis(rows, step.row_index[:, :, None], axis=1)  # [B, m, V]
        ids = np.argsort(-logits, axis=-1, kind="stable")[..., : self.manifest.limits.candidates]
        values = np.take_along_axis(logits, ids, axis=-1)
        return BackboneOutput(hidden=hidden, logits=logits, top_values=values, top_ids=ids)

    def run_mtp(self, states: ScriptedStates, step: Step, input_ids: Any, hidden: Any) -> MtpOutput:
        batch, num_asked = step.row_index.shape
        ids = np.asarray(input_ids)
        drafts = np.zeros((batch, num_asked), dtype=np.int64)
        recycled = np.zeros((batch, num_asked, 1), dtype=np.int64)
        for slot in range(batch):
            start, count = int(step.past_len[slot]), int(step.row_count[slot])
            states.mtp[slot, start : start + count] = ids[slot, :count]
            for place, row in enumerate(step.row_index[slot].tolist()):
                if row < count:
                    before = self._histories[int(hidden[slot, row, 0])]
                    history = (*before, int(ids[slot, row]))
                    seen = (history[0], *states.mtp[slot, : start + row + 1].tolist())
                    assert seen == history, "the head's cache holds other tokens than the text"
                    drafts[slot, place] = self._draft(history)
                    recycled[slot, place, 0] = self._remember(history)
        return MtpOutput(
            hidden=recycled,
            draft_ids=drafts,
            top_values=np.zeros((batch, num_asked, 1)),
            top_ids=drafts[..., None],
        )

    def read_rows(self, logits: Any, rows: list[tuple[int, int]]) -> NDArray[np.float64]:
        return np.stack([logits[slot, row] for slot, row in rows])

    def read_entries(self, logits: Any, row: tuple[int, int], ids: Any) -> NDArray[np.float64]:
        return np.asarray(logits[row][ids])

    def to_host(self, tensor: Any) -> NDArray[Any]:
        return np.asarray(tensor)

    def export_states(
        self, states: ScriptedStates, *, slot: int, lengths: Mapping[str, int]
    ) -> dict[str, NDArray[Any]]:
        return {name: getattr(states, name)[slot, : lengths[name]] for name in ("backbone", "mtp")}

    def import_states(
        self,
        states: ScriptedStates,
        *,
        slot: int,
        lengths: Mapping[str, int],
        arrays: Mapping[str, NDArray[Any]],
    ) -> None:
        for name in ("backbone", "mtp"):
            getattr(states, name)[slot, : lengths[name]] = arrays[name]

    def _draft(self, history: tuple[int, ...]) -> int:
        best = int(np.argmax(self.logits(history)))
        wrong = _hash((*history, 1)) % 1000 < 1000 * self._errors
        return (best + 1) % self.manifest.model.vocab_size if wrong else best

    def _remember(self, history: tuple[int, ...]) -> int:
        self._histories.append(history)
        return len(self._histories) - 1


def _hash(tokens: Sequence[int]) -> int:
    return zlib.crc32(np.asarray(tokens, dtype=np.int64).tobytes())
