"""A request at work in a slot: its sampler, its text, its counters, and when it ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from selfdraft.errors import ConfigError
from selfdraft.manifest import Manifest
from selfdraft.runtime.attention_record import AttentionMode, AttentionRecord
from selfdraft.runtime.distribution import Distribution
from selfdraft.runtime.logprobs import TokenLogprobs, token_logprobs
from selfdraft.runtime.memory import peak_rss_bytes
from selfdraft.runtime.reply_text import ReplyText
from selfdraft.runtime.request import Request
from selfdraft.runtime.request_chain import build_chain
from selfdraft.runtime.result import FinishReason, GenerationResult, TokenEvent, Verification
from selfdraft.runtime.row_sampler import RowSampler
from selfdraft.runtime.row_view import FloatRow, IdRow
from selfdraft.runtime.sampling import resolve_sampling, verification_of
from selfdraft.runtime.step_audit import AuditPoint
from selfdraft.runtime.telemetry.counts import Labels
from selfdraft.runtime.telemetry.meter import Snapshot, Telemetry
from selfdraft.runtime.thinking import ThinkingBudget
from selfdraft.runtime.thinking_record import ThinkingRecord, thinking_record
from selfdraft.runtime.verify import Chain

if TYPE_CHECKING:
    from selfdraft.runtime.tokenizer import Tokenizer

NOT_DRAFTED, FORCED = -1, -2


class StepOutcome(NamedTuple):
    """What one step made of a slot's drafts."""

    position: int
    """Absolute position of its first token."""
    drafted: int
    """Drafts of the head; tokens that had to follow are not counted."""
    accepted: int
    rejected: bool
    """The draft behind the accepted ones was judged, and differed; else the reply or the chain ended."""
    tokens: int
    """Tokens drawn, drafts included."""
    first: int
    """The first of them."""


NO_STEP = StepOutcome(position=0, drafted=0, accepted=0, rejected=False, tokens=0, first=0)


@dataclass(slots=True, kw_only=True)
class Run:
    """Mutable record of one request; ``result`` freezes it.

    ``tokens`` are those that the slot holds. With stop strings the last ones may wait: they are
    delivered (and count) when their text is certain, or dropped with the stop string.
    """

    request: Request
    sampler: RowSampler
    verification: Verification
    eos_ids: frozenset[int]
    end_ids: frozenset[int]
    max_tokens: int
    """Tokens it may deliver, the context's room included."""
    first_position: int
    """Absolute position of its first token."""
    drafted: list[int]
    reused_tokens: int = 0
    """Leading tokens that its slot had in the caches."""
    labels: Labels | None = None
    """For telemetry; None where nothing is counted."""
    text: ReplyText | None = None
    """None without a tokenizer."""
    tokens: list[int] = field(default_factory=list)
    origins: list[int] = field(default_factory=list)
    """For each token its place in the chain of drafts, NOT_DRAFTED, or FORCED: put in as a draft."""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    """Text of each token that can be delivered."""
    delivered: int = 0
    outcome: StepOutcome = NO_STEP
    """Of the last step."""
    num_own: int = 0
    """Drafts of the step at work that are the head's; those behind them had to follow."""
    laws: Sequence[Distribution] = ()
    """What these were drawn from; none where they are the likeliest tokens."""
    steps: int = 0
    rows: int = 0
    blocks_read: int = 0
    blocks_in_use: int = 0
    audit: list[AuditPoint] = field(default_factory=list)
    prefill_s: float = 0.0
    decode_s: float = 0.0
    finish_reason: FinishReason | None = None
    rest: str = ""
    """Text that a reply that was given up had held back."""

    @property
    def tokens_left(self) -> int:
        """Tokens it may still draw."""
        return self.max_tokens - len(self.tokens)

    def ends(self) -> Callable[[int], bool]:
        """For the verdict of one step: takes each token, says whether the reply ends with it."""
        text = self.text
        if text is None:
            return self.end_ids.__contains__
        left = self.tokens_left

        def take(token: int) -> bool:
            nonlocal left
            left -= 1
            ending = token in self.end_ids
            self.texts += text.push(token, last=ending or not left, silent=ending)
            return ending or text.matched is not None

        return take

    def note_logprobs(self, token: int, logits: FloatRow, values: FloatRow, ids: IdRow) -> None:
        """Record the log-probabilities of the next token, from its row ``logits [V]``."""
        count = self.request.logprobs
        assert count is not None
        self.logprobs.append(token_logprobs(logits, token, count=count, values=values, ids=ids))

    def plan(self, drafts: Sequence[int], laws: Sequence[Distribution], *, depth: int) -> list[int]:
        """The head's ``drafts`` of the next step, and tokens that must follow in their place.

        ``laws``: what they were drawn from, where they were drawn.
        """
        if self.sampler.free:
            planned, self.num_own = list(drafts), len(drafts)
        else:
            depth = min(depth, self.tokens_left - 1)
            planned, self.num_own = self.sampler.plan(drafts, depth)
        self.laws = laws[: self.num_own]
        return planned

    def deliver(self, chain: Chain, *, slot: int) -> list[TokenEvent]:
        """Take in what a step drew; what it delivers."""
        own = min(chain.num_accepted, self.num_own)
        self.outcome = StepOutcome(
            position=self.first_position + len(self.tokens),
            drafted=self.num_own,
            accepted=own,
            rejected=own < self.num_own and len(chain.tokens) > own,
            tokens=len(chain.tokens),
            first=chain.tokens[0],
        )
        self.tokens += chain.tokens
        self.origins += range(own)
        self.origins += [FORCED] * (chain.num_accepted - own)
        self.origins += [NOT_DRAFTED] * (len(chain.tokens) - chain.num_accepted)
        for position in range(self.num_own):
            self.drafted[position] += 1
        self.finish_reason = self._finish_reason()
        if self.text and self.text.matched is not None:
            self._keep(len(self.texts))
            self.rest = self.text.rest()
        return self._events(slot)

    def count_step(self, telemetry: Telemetry) -> None:
        """Tell of the last step."""
        position, drafted, accepted, _, tokens, _ = self.outcome
        if self.labels is not None:
            telemetry.note_step(
                self.labels, position=position, drafted=drafted, accepted=accepted, tokens=tokens
            )

    def count_reply(self, telemetry: Telemetry) -> None:
        """Tell that the reply has ended."""
        if self.labels is not None:
            telemetry.note_reply(self.labels, self._thinking_record())

    def end_early(self, kept: int | None = None) -> int:
        """Give up the reply after ``kept`` delivered tokens (None: all); the tokens it then has.

        Tokens that waited are dropped. With ``kept`` the reply can be resumed: no text that was
        held back comes to light.
        """
        if self.finish_reason is None or (kept is not None and kept < self.delivered):
            if kept is None and self.text:
                self.rest = self.text.rest()
            self._keep(self.delivered if kept is None else min(kept, self.delivered))
            self.finish_reason = "closed"
        return len(self.tokens)

    def result(
        self,
        *,
        state_bytes: int,
        synthetic: bool,
        attention: AttentionMode,
        telemetry: Snapshot | None,
    ) -> GenerationResult:
        """The frozen record; a run that has not ended counts as closed."""
        delivered = slice(self.delivered)
        accepted = Counter(self.origins[delivered])
        return GenerationResult(
            tokens=tuple(self.tokens[delivered]),
            text="".join([*self.texts[delivered], self.rest]) if self.text else None,
            logprobs=self._logprobs(),
            finish_reason=self.finish_reason or "closed",
            stop_reason=self._stop_reason(),
            verification=self.verification,
            seed=self.sampler.law.seed,
            prompt_tokens=len(self.request.prompt_ids),
            resumed_tokens=len(self.request.resumed_token_ids),
            reused_tokens=self.reused_tokens,
            steps=self.steps,
            drafted=tuple(self.drafted),
            accepted=tuple(accepted[position] for position in range(len(self.drafted))),
            forced_drafts=accepted[FORCED],
            thinking=self._thinking_record(),
            sampler_fallbacks=self.sampler.fallbacks,
            prefill_s=self.prefill_s,
            decode_s=self.decode_s,
            state_bytes=state_bytes,
            peak_rss_bytes=peak_rss_bytes(),
            synthetic=synthetic,
            attention=AttentionRecord(
                mode=attention,
                steps=self.steps,
                rows=self.rows,
                blocks_read=self.blocks_read,
                blocks_in_use=self.blocks_in_use,
            ),
            audit=tuple(self.audit),
            telemetry=telemetry,
        )

    def _thinking_record(self) -> ThinkingRecord | None:
        budget = self.sampler.processor(ThinkingBudget)
        if self.request.thinking is None or budget is None:
            return None
        return thinking_record(
            self.request.thinking,
            budget,
            temperature=self.sampler.law.temperature,
            prompt_ids=self.request.prompt_ids,
            reply=(*self.request.resumed_token_ids, *self.tokens[: self.delivered]),
        )

    def _keep(self, count: int) -> None:
        for per_token in (self.tokens, self.origins, self.logprobs, self.texts):
            del per_token[count:]
        self.delivered = min(self.delivered, count)

    def _events(self, slot: int) -> list[TokenEvent]:
        first, position, tokens = self.delivered, self.first_position, self.tokens
        if self.text is None and not self.logprobs:
            self.delivered = len(tokens)
            return [
                TokenEvent(tokens[index], position + index, self.origins[index] >= 0, slot)
                for index in range(first, len(tokens))
            ]
        self.delivered = len(self.texts) if self.text else len(tokens)
        return [
            TokenEvent(
                tokens[index],
                position + index,
                self.origins[index] >= 0,
                slot,
                self.texts[index] if self.text else "",
                self.logprobs[index] if self.logprobs else None,
            )
            for index in range(first, self.delivered)
        ]

    def _logprobs(self) -> tuple[TokenLogprobs, ...] | None:
        if self.request.logprobs is None:
            return None
        return tuple(self.logprobs[: self.delivered])

    def _finish_reason(self) -> FinishReason | None:
        if self.tokens[-1] in self.end_ids:
            return "eos" if self.tokens[-1] in self.eos_ids else "stop"
        if self.text and self.text.matched is not None:
            return "stop"
        if self.tokens_left:
            return None
        limit = self.request.max_tokens
        resumed = len(self.request.resumed_token_ids)
        return "length" if limit is not None and self.max_tokens == limit - resumed else "context"

    def _stop_reason(self) -> str | int | None:
        if self.finish_reason != "stop":
            return None
        if self.text and self.text.matched is not None:
            return self.text.matched
        return self.tokens[-1]


def start_run(
    request: Request,
    manifest: Manifest,
    *,
    room: int,
    depth: int,
    tokenizer: Tokenizer | None = None,
) -> Run:
    """A run that may deliver ``room`` tokens at most and is verified up to ``depth`` drafts."""
    eos_ids = frozenset() if request.ignore_eos else frozenset(manifest.text.eos_ids)
    end_ids = eos_ids | frozenset(request.stop_token_ids)
    vocab_size = manifest.model.vocab_size
    resumed = request.resumed_token_ids
    law = resolve_sampling(request.sampling, manifest.sampling)
    chain = build_chain(
        request, vocab_size=vocab_size, end_ids=end_ids, eos_ids=eos_ids, tokenizer=tokenizer
    )
    for token in resumed if chain else ():
        chain.advance(token)
    limit = room if request.max_tokens is None else min(request.max_tokens - len(resumed), room)
    return Run(
        request=request,
        sampler=RowSampler(law, vocab_size=vocab_size, chain=chain),
        verification=verification_of(request.sampling, law),
        eos_ids=eos_ids,
        end_ids=end_ids,
        max_tokens=limit,
        first_position=len(request.prompt_ids) + len(resumed),
        drafted=[0] * depth,
        text=_reply_text(request, tokenizer),
    )


def _reply_text(request: Request, tokenizer: Tokenizer | None) -> ReplyText | None:
    if tokenizer is None:
        if request.stop:
            raise ConfigError(
                "stop strings are texts, and this loop has no tokenizer",
                hint="give DecodeLoop the bundle's tokenizer, or stop at tokens: stop_token_ids",
            )
        return None
    text = ReplyText(
        tokenizer,
        request.stop,
        min_tokens=request.min_tokens,
        keep_stop=request.include_stop_str_in_output,
    )
    text.skip(request.resumed_token_ids)
    return text
