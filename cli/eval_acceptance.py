"""Acceptance of drafts by absolute position: does the head draft as well far into a context?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from selfdraft.cli.attention_counters import attention_facts
from selfdraft.errors import ConfigError, ResourceError
from selfdraft.runtime.generation import Generation
from selfdraft.runtime.request import Request
from selfdraft.runtime.result import GenerationResult
from selfdraft.runtime.sampling import SamplingParams

if TYPE_CHECKING:
    from selfdraft.cli.session import Session

OnProgress = Callable[[str, int, int], None]
SLOT = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Greedy continuations that started between two positions."""

    start: int
    end: int
    tokens: int
    steps: int
    drafted: tuple[int, ...]
    accepted: tuple[int, ...]
    attention: dict[str, Any]
    """Counters of the steps (``attention_counters.attention_facts``)."""

    @property
    def acceptance(self) -> tuple[float | None, ...]:
        """Share of the drafts at each position that were accepted (so all before them too)."""
        pairs = zip(self.accepted, self.drafted, strict=True)
        return tuple(accepted / drafted if drafted else None for accepted, drafted in pairs)

    @property
    def tokens_per_step(self) -> float | None:
        """Tokens that a step delivered on average."""
        return self.tokens / self.steps if self.steps else None


def acceptance_by_position(
    session: Session,
    ids: Sequence[int],
    *,
    bucket: int,
    trials: int,
    tokens: int,
    on_progress: OnProgress,
) -> list[Bucket]:
    """Continue ``ids`` greedily from ``trials`` places in each bucket, ``tokens`` at a time.

    The text is prefilled once: caches are kept up to each place. Raises ``ConfigError`` without
    an MTP head or drafts, ``ResourceError`` when text and continuation do not fit.
    """
    limit = session.bundle.manifest.limits.context_length
    if len(ids) + tokens > limit:
        raise ResourceError(
            f"{len(ids)} tokens and {tokens} more do not fit the context of {limit}",
            hint="lower --context, or export with a larger one",
        )
    loop = session.loop(context=len(ids) + tokens)
    if not loop.drafts:
        raise ConfigError(
            "acceptance needs drafts, and this run has none",
            hint="give --drafts 1 or more, and a bundle with an MTP head",
        )
    buckets = []
    for start in range(0, len(ids), bucket):
        end = min(start + bucket, len(ids))
        results = []
        for trial in range(trials):
            place = start + max((end - start) * (trial + 1) // trials, 1)
            request = Request(
                prompt_ids=tuple(ids[:place]),
                sampling=SamplingParams(temperature=0.0),
                max_tokens=tokens,
                ignore_eos=True,
            )
            generation = Generation(loop, {SLOT: request})
            for _ in generation:
                pass
            results.append(generation.result)
            on_progress("continuations", place, len(ids))
        buckets.append(_bucket(start, end, results))
    return buckets


def _bucket(start: int, end: int, results: Sequence[GenerationResult]) -> Bucket:
    return Bucket(
        start=start,
        end=end,
        tokens=sum(len(result.tokens) - 1 for result in results),
        steps=sum(result.steps for result in results),
        drafted=tuple(map(sum, zip(*(r.drafted for r in results), strict=True))),
        accepted=tuple(map(sum, zip(*(r.accepted for r in results), strict=True))),
        attention=attention_facts(results),
    )
