"""What a generation yields and what it ends in: one record for text, CLI and benchmarks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from selfdraft.runtime.attention_record import AttentionRecord
from selfdraft.runtime.logprobs import TokenLogprobs
from selfdraft.runtime.step_audit import AuditPoint
from selfdraft.runtime.telemetry.meter import Snapshot
from selfdraft.runtime.thinking_record import ThinkingRecord

FinishReason = Literal["eos", "stop", "length", "context", "closed"]
"""An end token of the model, a stop token or stop string of the request, ``max_tokens``, a full
context, or a consumer that stopped."""

Verification = Literal["greedy", "match", "rejection"]


class TokenEvent(NamedTuple):
    """One delivered token."""

    token: int
    position: int
    """Absolute position in the sequence, prompt included."""
    drafted: bool
    """Proposed by the MTP head and accepted; else drawn from the target directly."""
    slot: int
    text: str = ""
    """Text that is certain with this token, where the loop has a tokenizer; the end or stop token
    is no part of it. Joined, the texts of a reply are its text."""
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationResult:
    """One reply and how it came about. Only delivered tokens are counted."""

    tokens: tuple[int, ...]
    """Delivered tokens; the end or stop token is the last one. Of a stop string there is no token,
    but one in which the text before it ends."""
    text: str | None
    """None where the loop has no tokenizer."""
    logprobs: tuple[TokenLogprobs, ...] | None
    """One for each token, where the request asks for them."""
    finish_reason: FinishReason
    stop_reason: str | int | None
    """The stop string or stop token that ended the reply."""
    verification: Verification
    seed: int
    prompt_tokens: int
    resumed_tokens: int
    """Tokens of the reply that an earlier run delivered; not among ``tokens``."""
    reused_tokens: int
    """Prompt tokens that were in the caches already."""
    steps: int
    """Decode steps; the first token comes from the prefill and needs none."""
    drafted: tuple[int, ...]
    """Drafts verified at each draft position (1st, 2nd, …)."""
    accepted: tuple[int, ...]
    """Of those, drafts delivered at each position."""
    forced_drafts: int
    """Delivered tokens that stood among the drafts because they had to follow (thinking budgets);
    not counted in ``drafted`` and ``accepted``."""
    thinking: ThinkingRecord | None
    """How the reply kept to its thinking budget; None without one."""
    sampler_fallbacks: int
    """Rows whose full logits were fetched to draw exactly."""
    prefill_s: float
    decode_s: float
    """Seconds inside the loop, the consumer's time not counted."""
    state_bytes: int
    """Caches of all slots."""
    peak_rss_bytes: int | None
    """Peak memory of the process; None where the system does not say."""
    synthetic: bool
    """The verdicts were replaced for a benchmark: tokens mean nothing."""
    attention: AttentionRecord
    """What the decode steps read."""
    audit: tuple[AuditPoint, ...]
    """Steps compared with dense attention (``audit_every``)."""
    telemetry: Snapshot | None = None
    """The telemetry's window when the record was made, this reply included; None without telemetry."""

    @property
    def acceptance_per_position(self) -> tuple[float | None, ...]:
        """Share of steps that drafted at position i and accepted it (so all before it too)."""
        return tuple(_share(a, d) for a, d in zip(self.accepted, self.drafted, strict=True))

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted drafts by verified drafts; None without drafts."""
        return _share(sum(self.accepted), sum(self.drafted))

    @property
    def tokens_per_step(self) -> float | None:
        """Tokens that a decode step delivered on average."""
        return _share(max(len(self.tokens) - 1, 0), self.steps)

    @property
    def prefill_tok_per_s(self) -> float | None:
        """Prompt tokens computed (not reused) by second."""
        computed = self.prompt_tokens + self.resumed_tokens - self.reused_tokens
        return _rate(computed, self.prefill_s)

    @property
    def decode_tok_per_s(self) -> float | None:
        """Tokens of decode steps by second."""
        return _rate(max(len(self.tokens) - 1, 0), self.decode_s) if self.steps else None


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _rate(count: int, seconds: float) -> float | None:
    return count / seconds if seconds > 0 else None
