"""The decode loop: B slots, self-speculative decoding in steps of draft and verify.

Between steps a slot holds tokens x_0..x_n, x_n drawn but in no cache, and n cached rows. A step:

1. the MTP head catches up with the target's last rows and drafts d_1..d_K from there,
2. the target runs over [x_n, d_1..d_K],
3. the longest prefix that the target draws too is delivered, and its next token.

Rejecting is not advancing the lengths. Without drafts step 1 falls away: plain decoding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from selfdraft.errors import ConfigError
from selfdraft.manifest import MAX_STEP_ROWS, RESERVE_SLOTS, capacity_for
from selfdraft.runtime.adaptive.policy import BatchPolicy, DraftPolicy
from selfdraft.runtime.backend import Backend
from selfdraft.runtime.drafting import Drafting
from selfdraft.runtime.judge import Judge
from selfdraft.runtime.loop_options import check_request, checked, checked_policy
from selfdraft.runtime.prefill import SPARSE_CHUNK_ROWS, OnProgress, Prefill
from selfdraft.runtime.request import Request
from selfdraft.runtime.result import GenerationResult, TokenEvent
from selfdraft.runtime.run import Run, start_run
from selfdraft.runtime.slot_cache import SlotCache
from selfdraft.runtime.slot_checks import checked_prefill_attention
from selfdraft.runtime.slot_range import SlotRanges, TapRows
from selfdraft.runtime.slot_store import SlotStore
from selfdraft.runtime.slots import SlotTable
from selfdraft.runtime.step_audit import StepAudit
from selfdraft.runtime.target_pass import TargetPass
from selfdraft.runtime.telemetry.meter import Telemetry
from selfdraft.runtime.verify import Rates, verdict_for

if TYPE_CHECKING:
    from selfdraft.runtime.tokenizer import Tokenizer


class DecodeLoop:
    """Continues up to ``batch`` sequences together on one backend.

    ``drafts``: drafts of a step, 0 to 8, or what decides on them step by step; None: 1 where the
    bundle has an MTP head, else 0.
    ``context_length``, ``prefill_rows``: None takes the bundle's limits. ``prefill_attention``:
    prompts attend densely, or as a decode step does (64 rows at a time by default). ``step_rows`` pads
    decode steps to at least so many rows, so that plain and speculative decoding run the same kernels.
    ``forced_acceptance`` replaces the verdicts for benchmarks. ``audit_every`` N compares every Nth
    step with dense attention (``runtime.step_audit``). ``tokenizer``: what requests with options that
    are texts need. ``telemetry`` counts every step whose verdict is real. Raises ``ConfigError``.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        batch: int = 1,
        drafts: int | DraftPolicy | BatchPolicy | None = None,
        context_length: int | None = None,
        prefill_rows: int | None = None,
        prefill_attention: str = "dense",
        step_rows: int = 1,
        forced_acceptance: Rates | None = None,
        audit_every: int | None = None,
        tokenizer: Tokenizer | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        limits = backend.manifest.limits
        if batch < 1:
            raise ConfigError(f"batch is {batch}", hint="give batch a value from 1")
        self._backend = backend
        self._tokenizer = tokenizer
        policy = checked_policy(backend, drafts)
        self.drafts = policy.most
        self._clock = policy.clock
        self.context_length = checked(
            "context_length", context_length, limits.context_length, 2, limits.context_length
        )
        self.prefill_attention = checked_prefill_attention(backend.manifest, prefill_attention)
        # Prompts attend densely then, decode steps of a sparse bundle do not.
        differ = backend.manifest.attention is not None and self.prefill_attention == "dense"
        sparse = self.prefill_attention == "sparse"
        usual_rows = min(limits.prefill_rows, SPARSE_CHUNK_ROWS if sparse else limits.prefill_rows)
        chunk_rows = checked("prefill_rows", prefill_rows, usual_rows, 1, limits.context_length)
        least_rows = checked("step_rows", step_rows, 1, 1, MAX_STEP_ROWS)
        self._states = backend.allocate(batch=batch, capacity=capacity_for(self.context_length))
        assert self._states.capacity >= self.context_length + RESERVE_SLOTS
        self._slots = SlotTable(batch, recurrent=backend.manifest.model.delta is not None)
        self._ranges = SlotRanges(backend, self._states)
        self._store = SlotStore(
            backend, self._states, self._slots, drafting=self.drafts > 0, prompts_differ=differ
        )
        self._synthetic = forced_acceptance is not None
        self._telemetry = None if self._synthetic else telemetry
        verdict, agrees = verdict_for(forced_acceptance)
        self._judge = Judge(backend, self._slots, verdict=verdict, telemetry=self._telemetry)
        self._drafting: Drafting | None = None
        if self.drafts:
            self._drafting = Drafting(backend, self._slots, self._ranges, policy, agrees)
        self._prefill = Prefill(
            backend,
            self._slots,
            self._ranges,
            self._drafting.head if self._drafting else None,
            chunk_rows=chunk_rows,
            attention=self.prefill_attention,
            alike=not differ,
        )
        audit = (
            StepAudit(backend, self._slots, every=audit_every) if audit_every is not None else None
        )
        self._target = TargetPass(backend, self._slots, least_rows=least_rows, audit=audit)
        self._runs: list[Run | None] = [None] * batch
        self._filling: set[int] = set()
        """Slots whose prompt is being computed, chunk by chunk."""

    @property
    def batch(self) -> int:
        """Slots."""
        return self._slots.batch

    @property
    def active(self) -> tuple[int, ...]:
        """Slots with an unfinished request."""
        return tuple(slot for slot, live in enumerate(self._slots.live) if live)

    @property
    def has_text(self) -> bool:
        """Whether it has a tokenizer, so that replies have a text."""
        return self._tokenizer is not None

    @property
    def caches_grow(self) -> bool:
        """Whether the system gives memory to the caches as they fill; else it is taken already."""
        return self._backend.name != "tensorrt"

    @property
    def state_bytes(self) -> int:
        """Caches of all slots."""
        return self._states.num_bytes

    @property
    def telemetry(self) -> Telemetry | None:
        """What its steps are counted by."""
        return self._telemetry

    @property
    def chunk_rows(self) -> int:
        """Rows of a chunk of a prompt at most."""
        return self._prefill.chunk_rows

    def is_busy(self, slot: int) -> bool:
        """Whether a request is at work in it."""
        return self._slots.live[slot] or slot in self._filling

    def num_cached(self, slot: int) -> int:
        """Tokens in the slot's cache."""
        return self._slots.cached[slot]

    def tokens(self, slot: int) -> tuple[int, ...]:
        """Every token of a slot, prompt and reply; all but the last are in the cache."""
        return tuple(self._slots.tokens[slot])

    def continue_from(
        self, slot: int, token_ids: Sequence[int], *, num_prompt: int | None = None
    ) -> int:
        """Let ``slot`` hold ``token_ids``; the number of leading tokens that need no computing.

        ``num_prompt`` of them are a prompt (None: all), those behind it a reply that goes on.
        Caches are cut back to what both have in common. Raises ``ConfigError`` for a busy slot.
        """
        self._check_idle(slot)
        return self._store.rewind(slot, token_ids, num_prompt=num_prompt)

    def shared_tokens(self, slot: int, token_ids: Sequence[int], *, num_prompt: int) -> int:
        """What ``continue_from`` would return for ``slot``, busy or not; nothing changes."""
        return self._store.shared(slot, token_ids, num_prompt=num_prompt)

    def reset(self, slot: int) -> None:
        """Forget a slot's tokens, and end its request."""
        self.cancel(slot)
        self._slots.rewind(slot, (), drafting=False)

    def cancel(self, slot: int) -> None:
        """End a slot's request; its tokens stay, and the next turn can go on from them."""
        self._end_early(slot, None)

    def cut(self, slot: int, num_tokens: int) -> None:
        """End a slot's request after the first ``num_tokens`` that it delivered.

        It may have ended already, as long as no other one has begun in the slot.
        The slot then holds what plain decoding would have held there, and the request can be
        resumed (``Request.resumed_token_ids``).
        """
        self._end_early(slot, num_tokens)

    def slot_cache(self, slot: int) -> SlotCache:
        """What a slot between requests holds; its arrays are valid until the next step."""
        self._check_idle(slot)
        return self._store.take_out(slot, self.prefill_attention)

    def restore(self, slot: int, cache: SlotCache) -> None:
        """Let ``slot`` hold ``cache``, as if it had computed it.

        Raises ``ConfigError`` or ``ResourceError`` for a cache that this loop cannot go on from, and
        ``BundleError`` for one whose states are other ones.
        """
        self._check_idle(slot)
        self._store.check(slot, cache, self)
        self.reset(slot)
        self._store.put_in(slot, cache)

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Let the idle slot ``target`` hold the first ``length`` tokens of ``source``, busy or not.

        What ``source`` has in its caches is copied. Raises ``ConfigError`` for a busy target.
        """
        self._check_idle(target)
        self._store.copy_prefix(source, target, length)

    def result(self, slot: int) -> GenerationResult:
        """The record of the slot's last request, finished or not."""
        run = self._runs[slot]
        if run is None:
            raise ConfigError(f"slot {slot} had no request", hint="begin one first")
        return run.result(
            state_bytes=self._states.num_bytes,
            synthetic=self._synthetic,
            attention=self._target.mode,
            telemetry=self._telemetry.snapshot() if self._telemetry else None,
        )

    def begin(
        self, requests: Mapping[int, Request], *, on_progress: OnProgress | None = None
    ) -> list[TokenEvent]:
        """Start a request in each given slot: prefill together, draw the first tokens.

        Reuses what the caches share with the prompts. Other slots may be in the middle of theirs.
        Raises ``ConfigError`` or, for a prompt that leaves no room, ``ResourceError``. After any
        error none of these requests runs.
        """
        started, events = self._clock(), list[TokenEvent]()
        if not requests:
            raise ConfigError("there is no request to begin", hint="give at least one")
        for slot in requests:
            self._check_slot(slot)
        runs = {slot: self.prepare(request) for slot, request in requests.items()}
        if self._drafting:
            self._drafting.settle()
        try:
            for slot, run in runs.items():
                self._start(slot, run)
                self._slots.live[slot] = True
            prompts = {slot: len(request.prompt_ids) for slot, request in requests.items()}
            chunk = self._prefill.run(prompts, on_progress)
            if self._drafting:
                self._drafting.take(chunk.taps, prompt=True)
            for slot, run in runs.items():
                events += self._judge.deliver(slot, run, chunk.output, chunk.span, ())
        except BaseException:
            self._cancel_all(requests)
            raise
        elapsed = self._clock() - started
        for run in runs.values():
            run.prefill_s = elapsed
        return events

    def prepare(self, request: Request) -> Run:
        """The record of a request to be, for ``admit``; from any thread.

        Raises ``ConfigError`` or, for a prompt that leaves no room, ``ResourceError``.
        """
        manifest, context = self._backend.manifest, self.context_length
        check_request(request, vocab_size=manifest.model.vocab_size, context_length=context)
        length = len(request.prompt_ids) + len(request.resumed_token_ids)
        return start_run(
            request,
            manifest,
            room=context - length,
            depth=self.drafts,
            tokenizer=self._tokenizer,
        )

    def admit(self, slot: int, run: Run) -> int:
        """Let ``slot`` take in what ``prepare`` made; ``fill`` computes its prompt.

        Returns the number of tokens that its cache shares with the prompt. Raises ``ConfigError``
        for a busy slot.
        """
        self._check_slot(slot)
        if self._drafting:
            self._drafting.begin(slot)
        self._start(slot, run)
        self._filling.add(slot)
        return run.reused_tokens

    def fill(self, slot: int, *, most: int | None = None) -> list[TokenEvent]:
        """Compute the next chunk of an admitted slot's prompt, ``most`` rows of it at most.

        With the last chunk the first token is drawn, and from then on ``step`` goes on with the slot;
        until then nothing is delivered. Other slots may take steps in between. An error ends this
        request alone.
        """
        run, started = self._run(slot), self._clock()
        events: list[TokenEvent] = []
        try:
            if self._drafting:
                self._drafting.hold()
            most = self.chunk_rows if most is None else most
            chunk = self._prefill.advance(slot, len(run.request.prompt_ids), most=most)
            if chunk.last:
                self._filling.remove(slot)
                self._slots.live[slot] = True
                events = self._judge.deliver(slot, run, chunk.output, chunk.span, ())
                if self._drafting and self._slots.live[slot]:
                    self._drafting.joined(slot, chunk.taps)
        except BaseException:
            self._cancel_all([slot])
            raise
        run.prefill_s += self._clock() - started
        return events

    def step(self) -> list[TokenEvent]:
        """One step of every active slot; the tokens delivered, slot by slot in order.

        An error ends every request: some slots may have moved on, others not.
        """
        started = self._clock()
        active = self.active
        runs = {slot: self._run(slot) for slot in active}
        audited = self._target.audit_s
        events: list[TokenEvent] = []
        try:
            span = self._ranges.covering(active)
            drafts = self._drafting.propose(runs, span) if self._drafting else {}
            planned = self._drafting.drafts if self._drafting else 0
            output, rows = self._target.run(span, runs, drafts, num_rows=planned + 1)
            if self._drafting:
                self._drafting.take(TapRows(output.hidden, rows, span))
            for slot, run in runs.items():
                events += self._judge.deliver(slot, run, output, span, drafts.get(slot, ()))
                # The row of x_n and those of the accepted drafts are final.
                self._slots.cached[slot] = len(self._slots.tokens[slot]) - 1
        except BaseException:
            self._cancel_all(active)
            raise
        elapsed = self._clock() - started - (self._target.audit_s - audited)
        for run in runs.values():
            run.steps += 1
            run.decode_s += elapsed
            if self._telemetry:
                run.count_step(self._telemetry)
        if self._drafting:
            self._drafting.note(runs, elapsed)
        return events

    def _end_early(self, slot: int, kept: int | None) -> None:
        run = self._runs[slot]
        if run is None or not (self.is_busy(slot) or kept is not None):
            return
        if self._telemetry and kept is None:
            run.count_reply(self._telemetry)  # what was cut can go on, and is counted at its end
        self._slots.live[slot] = False
        self._filling.discard(slot)
        count = run.end_early(kept)
        self._slots.truncate(slot, run.first_position + count)

    def _check_idle(self, slot: int) -> None:
        if self.is_busy(slot):
            raise ConfigError(f"slot {slot} is generating", hint="cancel or finish it first")

    def _cancel_all(self, slots: Iterable[int]) -> None:
        """After an error: a slot left live halfway would decode from a wrong state, or stay busy."""
        for slot in slots:
            self.cancel(slot)
            self._slots.lose_state(slot)

    def _check_slot(self, slot: int) -> None:
        if not 0 <= slot < self.batch:
            raise ConfigError(
                f"slot {slot} is none of this loop's {self.batch}",
                hint=f"use slots 0 to {self.batch - 1}, or a loop with a larger batch",
            )
        self._check_idle(slot)

    def _start(self, slot: int, run: Run) -> None:
        request = run.request
        tokens = (*request.prompt_ids, *request.resumed_token_ids)
        run.reused_tokens = self.continue_from(slot, tokens, num_prompt=len(request.prompt_ids))
        if self._telemetry:
            temperature = run.sampler.law.temperature
            run.labels = self._telemetry.labels(request.task, run.verification, temperature)
        self._runs[slot] = run

    def _run(self, slot: int) -> Run:
        run = self._runs[slot]
        assert run is not None
        return run
