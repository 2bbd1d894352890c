"""A request at work in a slot: its sampler, its counters, and when it ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from selfdraft.manifest import Manifest
from selfdraft.runtime.attention_record import AttentionMode, AttentionRecord
from selfdraft.runtime.memory import peak_rss_bytes
from selfdraft.runtime.request import Request
from selfdraft.runtime.request_chain import build_chain
from selfdraft.runtime.result import FinishReason, GenerationResult
from selfdraft.runtime.row_sampler import RowSampler
from selfdraft.runtime.sampling import resolve_sampling
from selfdraft.runtime.step_audit import AuditPoint
from selfdraft.runtime.thinking import ThinkingBudget
from selfdraft.runtime.thinking_record import ThinkingRecord, thinking_record
from selfdraft.runtime.verify import Chain

if TYPE_CHECKING:
    from selfdraft.runtime.tokenizer import Tokenizer


@dataclass(slots=True, kw_only=True)
class Run:
    """Mutable record of one request; ``result`` freezes it."""

    request: Request
    sampler: RowSampler
    eos_ids: frozenset[int]
    end_ids: frozenset[int]
    max_tokens: int
    """Tokens it may deliver, the context's room included."""
    reused_tokens: int
    drafted: list[int]
    accepted: list[int]
    forced_drafts: int = 0
    tokens: list[int] = field(default_factory=list)
    steps: int = 0
    rows: int = 0
    blocks_read: int = 0
    blocks_in_use: int = 0
    audit: list[AuditPoint] = field(default_factory=list)
    prefill_s: float = 0.0
    decode_s: float = 0.0
    finish_reason: FinishReason | None = None

    @property
    def tokens_left(self) -> int:
        """Tokens it may still deliver."""
        return self.max_tokens - len(self.tokens)

    def deliver(self, chain: Chain, *, depth: int) -> None:
        """Count what a step delivered after verifying ``depth`` drafts of the MTP head.

        Tokens accepted beyond them were put in because they had to follow.
        """
        self.tokens += chain.tokens
        self.forced_drafts += max(chain.num_accepted - depth, 0)
        for position in range(depth):
            self.drafted[position] += 1
            self.accepted[position] += position < chain.num_accepted
        self.finish_reason = self._finish_reason()

    def result(
        self, *, state_bytes: int, synthetic: bool, attention: AttentionMode
    ) -> GenerationResult:
        """The frozen record; a run that has not ended counts as closed."""
        law = self.sampler.law
        return GenerationResult(
            tokens=tuple(self.tokens),
            finish_reason=self.finish_reason or "closed",
            verification="greedy" if law.greedy else "match",
            seed=law.seed,
            prompt_tokens=len(self.request.prompt_ids),
            reused_tokens=self.reused_tokens,
            steps=self.steps,
            drafted=tuple(self.drafted),
            accepted=tuple(self.accepted),
            forced_drafts=self.forced_drafts,
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
            reply=self.tokens,
        )

    def _finish_reason(self) -> FinishReason | None:
        if self.tokens[-1] in self.end_ids:
            return "eos" if self.tokens[-1] in self.eos_ids else "stop"
        if self.tokens_left:
            return None
        return "length" if self.max_tokens == self.request.max_tokens else "context"


def start_run(
    request: Request,
    manifest: Manifest,
    *,
    room: int,
    reused_tokens: int,
    depth: int,
    tokenizer: Tokenizer | None = None,
) -> Run:
    """A run that may deliver ``room`` tokens at most and is verified up to ``depth`` drafts."""
    eos_ids = frozenset() if request.ignore_eos else frozenset(manifest.text.eos_ids)
    end_ids = eos_ids | frozenset(request.stop_token_ids)
    vocab_size = manifest.model.vocab_size
    sampler = RowSampler(
        resolve_sampling(request.sampling, manifest.sampling),
        vocab_size=vocab_size,
        chain=build_chain(request, vocab_size=vocab_size, end_ids=end_ids, tokenizer=tokenizer),
    )
    return Run(
        request=request,
        sampler=sampler,
        eos_ids=eos_ids,
        end_ids=end_ids,
        max_tokens=room if request.max_tokens is None else min(request.max_tokens, room),
        reused_tokens=reused_tokens,
        drafted=[0] * depth,
        accepted=[0] * depth,
    )
