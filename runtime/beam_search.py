"""Beam search: the likeliest continuations that a beam of ``num_beams`` sequences finds.

For offline use: which tokens are delivered is known only at the end. Beams are the slots of one
batch; a beam that forks is copied into the slot of one that died, so the best child of each beam
costs no copy. No drafts are verified.

The rules are those of Hugging Face transformers, so that its settings carry over: of the best
``(1 + end tokens) * num_beams`` continuations of all beams, those among the first ``num_beams``
that end are finished, and the best ``num_beams`` that do not end go on. A finished sequence is
scored by the sum of its log-probabilities divided by ``length ** length_penalty``, its end token
included.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from selfdraft.errors import ConfigError, ResourceError
from selfdraft.manifest import Manifest, capacity_for
from selfdraft.runtime.backend import BackboneOutput, Backend, FloatArray
from selfdraft.runtime.candidates import top_candidates
from selfdraft.runtime.memory import peak_rss_bytes
from selfdraft.runtime.prefill import OnProgress, Prefill
from selfdraft.runtime.slot_range import SlotRanges
from selfdraft.runtime.slots import SlotTable, StepArrays

EarlyStopping = bool | Literal["never"]
BeamEnd = Literal["eos", "stop", "length", "context"]
MAX_BEAMS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamOptions:
    """How wide and how long to search. Raises ``ConfigError`` for values out of range."""

    num_beams: int
    length_penalty: float = 1.0
    """Above 0 favours longer sequences (log-probabilities are negative), below 0 shorter ones."""
    early_stopping: EarlyStopping = False
    """When to stop: True, as soon as ``num_beams`` sequences are finished; False, when the best
    beam could not beat the worst of them if it ended now; ``never``, when it could not at any
    length."""

    def __post_init__(self) -> None:
        if not 1 <= self.num_beams <= MAX_BEAMS:
            raise ConfigError(
                f"num_beams is {self.num_beams}", hint=f"give num_beams from 1 to {MAX_BEAMS}"
            )
        if not np.isfinite(self.length_penalty):
            raise ConfigError(
                f"length_penalty is {self.length_penalty}", hint="give a number, e.g. 1.0"
            )
        if self.early_stopping not in (True, False, "never"):
            raise ConfigError(
                f"early_stopping is {self.early_stopping!r}", hint="give true, false or never"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedBeam:
    """One finished sequence."""

    tokens: tuple[int, ...]
    """Without the prompt; an end token is the last one."""
    score: float
    """Sum of log-probabilities by ``length ** length_penalty``."""
    finish_reason: BeamEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamResult:
    """Finished sequences, the best first, and how they came about."""

    beams: tuple[FinishedBeam, ...]
    options: BeamOptions
    prompt_tokens: int
    steps: int
    """Passes of the target over all beams; the first tokens come from the prefill."""
    prefill_s: float
    decode_s: float
    state_bytes: int
    peak_rss_bytes: int | None


@dataclass(slots=True, kw_only=True)
class _Beam:
    tokens: list[int] = field(default_factory=list)
    score: float = 0.0
    slot: int = 0


def beam_search(
    backend: Backend,
    prompt_ids: Sequence[int],
    options: BeamOptions,
    *,
    max_tokens: int | None = None,
    stop_ids: Collection[int] = (),
    context_length: int | None = None,
    on_progress: OnProgress | None = None,
) -> BeamResult:
    """Continue one prompt until the search ends.

    ``max_tokens`` None: as many as ``context_length`` (None: the bundle's limit) holds. Raises
    ``ConfigError`` and ``ResourceError`` as a ``DecodeLoop`` does.
    """
    limits = backend.manifest.limits
    context = limits.context_length if context_length is None else context_length
    _check_request(backend.manifest, prompt_ids, max_tokens, context)
    room = context - len(prompt_ids)
    search = _Search(
        backend,
        options,
        stop_ids=frozenset(stop_ids),
        max_tokens=room if max_tokens is None else min(max_tokens, room),
        at_the_limit="length" if max_tokens is not None and max_tokens <= room else "context",
        prompt_tokens=len(prompt_ids),
    )
    return search.run(prompt_ids, on_progress)


class _Search:
    def __init__(
        self,
        backend: Backend,
        options: BeamOptions,
        *,
        stop_ids: frozenset[int],
        max_tokens: int,
        at_the_limit: BeamEnd,
        prompt_tokens: int,
    ) -> None:
        self._backend = backend
        self._options = options
        self._eos_ids = frozenset(backend.manifest.text.eos_ids)
        self._end_ids = self._eos_ids | stop_ids
        self._max_tokens = max_tokens
        self._at_the_limit: BeamEnd = at_the_limit
        self._prompt_tokens = prompt_tokens
        self._states = backend.allocate(
            batch=options.num_beams, capacity=capacity_for(prompt_tokens + max_tokens)
        )
        self._slots = SlotTable(options.num_beams)
        self._arrays = StepArrays(options.num_beams, num_rows=1, num_logit_rows=1)
        self._finished: list[FinishedBeam] = []
        self._length = 0
        """Tokens that every running beam has."""

    def run(self, prompt_ids: Sequence[int], on_progress: OnProgress | None) -> BeamResult:
        started = time.perf_counter()
        self._slots.tokens[0] = list(prompt_ids)
        prefill = Prefill(
            self._backend,
            self._slots,
            SlotRanges(self._backend, self._states),
            None,
            chunk_rows=self._backend.manifest.limits.prefill_rows,
        )
        output = prefill.run({0: len(prompt_ids)}, on_progress).output  # slot 0 is its first row
        prefilled = time.perf_counter()
        beams = self._advance([_Beam()], output)
        steps = 0
        while beams and self._may_improve(beams[0].score):
            self._place(beams)
            beams = self._advance(beams, self._run_step(beams))
            steps += 1
        return BeamResult(
            beams=tuple(self._finished),
            options=self._options,
            prompt_tokens=len(prompt_ids),
            steps=steps,
            prefill_s=prefilled - started,
            decode_s=time.perf_counter() - prefilled,
            state_bytes=self._states.num_bytes,
            peak_rss_bytes=peak_rss_bytes(),
        )

    def _advance(self, beams: Sequence[_Beam], output: BackboneOutput) -> list[_Beam]:
        """The beams that go on, best first; those that end now are taken into ``finished``."""
        rows = self._backend.read_rows(output.logits, [(beam.slot, 0) for beam in beams])
        totals = _log_softmax(rows) + np.array([[beam.score] for beam in beams])  # [beams, V]
        num_kept = max(2, 1 + len(self._end_ids)) * self._options.num_beams
        scores, places = top_candidates(totals.reshape(-1), num_kept)
        self._length += 1
        running: list[_Beam] = []
        for rank, (score, place) in enumerate(zip(scores.tolist(), places.tolist(), strict=True)):
            parent, token = divmod(place, totals.shape[1])
            tokens = [*beams[parent].tokens, token]
            if token in self._end_ids or self._length == self._max_tokens:
                # The others are there only so that enough beams can go on.
                if rank < self._options.num_beams:
                    self._finish(tokens, score)
            elif len(running) < self._options.num_beams:
                running.append(_Beam(tokens=tokens, score=score, slot=beams[parent].slot))
        return running

    def _finish(self, tokens: list[int], score: float) -> None:
        reason = self._at_the_limit
        if tokens[-1] in self._end_ids:
            reason = "eos" if tokens[-1] in self._eos_ids else "stop"
        scaled = score / len(tokens) ** self._options.length_penalty
        beam = FinishedBeam(tokens=tuple(tokens), score=scaled, finish_reason=reason)
        ranked = sorted([*self._finished, beam], key=lambda known: -known.score)
        self._finished = ranked[: self._options.num_beams]

    def _may_improve(self, best_score: float) -> bool:
        options = self._options
        if len(self._finished) < options.num_beams:
            return True
        if options.early_stopping is True:
            return False
        longest = options.early_stopping == "never" and options.length_penalty > 0
        length = self._max_tokens if longest else self._length
        hoped = float(best_score / length**options.length_penalty)
        return hoped > self._finished[-1].score

    def _place(self, beams: Sequence[_Beam]) -> None:
        """Give each beam a slot that holds its parent's caches: the parent's own, or a copy."""
        taken: set[int] = set()
        forks: list[_Beam] = []
        for beam in beams:
            if beam.slot in taken:
                forks.append(beam)
            taken.add(beam.slot)
        cached = self._prompt_tokens + self._length - 1
        lengths = {"backbone": cached, "mtp": 0}
        free = [slot for slot in range(self._options.num_beams) if slot not in taken]
        for beam, slot in zip(forks, free, strict=False):
            arrays = self._backend.export_states(self._states, slot=beam.slot, lengths=lengths)
            self._backend.import_states(self._states, slot=slot, lengths=lengths, arrays=arrays)
            beam.slot = slot
        for beam in beams:
            self._slots.cached[beam.slot] = cached

    def _run_step(self, beams: Sequence[_Beam]) -> BackboneOutput:
        """Run the target over the newest token of each beam."""
        counts = [0] * self._options.num_beams
        for beam in beams:
            counts[beam.slot] = 1
            self._arrays.input_ids[beam.slot, 0] = beam.tokens[-1]
        step = self._arrays.fill(
            past_len=self._slots.cached, row_count=counts, attend_all=[0] * len(counts)
        )
        return self._backend.run_backbone(self._states, step, self._arrays.input_ids)


def _log_softmax(rows: FloatArray) -> NDArray[np.float64]:
    shifted = rows.astype(np.float64) - rows.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def _check_request(
    manifest: Manifest, prompt_ids: Sequence[int], max_tokens: int | None, context: int
) -> None:
    if not prompt_ids:
        raise ConfigError("the prompt is empty", hint="give at least one token")
    wrong = next((t for t in prompt_ids if not 0 <= t < manifest.model.vocab_size), None)
    if wrong is not None:
        raise ConfigError(
            f"prompt token {wrong} is outside the vocabulary of {manifest.model.vocab_size}",
            hint="use the tokenizer of this bundle",
        )
    if not 2 <= context <= manifest.limits.context_length:
        raise ConfigError(
            f"context_length is {context}",
            hint=f"give a value from 2 to {manifest.limits.context_length}",
        )
    if max_tokens is not None and max_tokens < 1:
        raise ConfigError(f"max_tokens is {max_tokens}", hint="give a whole number from 1")
    if len(prompt_ids) >= context:
        raise ResourceError(
            f"the prompt has {len(prompt_ids)} tokens, the context holds {context} with the reply",
            hint=f"shorten the prompt to {context - 1} tokens or fewer",
        )
