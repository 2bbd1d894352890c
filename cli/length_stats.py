"""Lengths of generations, and what a hard limit on them would mean.

After DLER ("Doing Length pEnalty Right", arXiv:2510.15110): a reply longer than L_max has reward
zero there, so the share beyond L_max says how far a model is from a budget. A step is a paragraph
of the reply (text between blank lines); models trained to be short keep some steps deep and cut
others, which shows in the spread of step lengths within a reply.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, pstdev

from selfdraft.cli.attention_facts import bytes_by_kind
from selfdraft.cli.length_records import SavedGeneration
from selfdraft.manifest import Manifest

DEFAULT_LIMIT = 4000
_BLANK_LINES = re.compile(r"\n\s*\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthStats:
    """Statistics over the replies of one file. Shares and rates are None where nothing counts."""

    replies: int
    limit: int
    """L_max in tokens."""
    beyond: int
    """Replies longer than the limit, or cut off at it: reward zero."""
    cut_off: int
    """Replies that did not end by themselves: their true length is larger."""
    mean_tokens: float
    median_tokens: float
    p90_tokens: int
    """Nine of ten replies are no longer."""
    max_tokens: int
    mean_steps: float
    """Paragraphs of a reply."""
    mean_step_chars: float | None
    step_spread: float | None
    """Standard deviation by mean of the step lengths within a reply, averaged over the replies of
    two steps or more."""
    peak_tokens: int
    """Longest prompt and reply together."""
    kv_peak_bytes: int | None
    """States of both graphs for one sequence of ``peak_tokens``; None without a bundle."""
    drafted: int
    accepted: int
    decode_steps: int

    @property
    def beyond_share(self) -> float:
        """Share of replies with reward zero."""
        return self.beyond / self.replies

    @property
    def cut_off_share(self) -> float:
        """Share of replies that did not end by themselves."""
        return self.cut_off / self.replies

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted drafts by verified drafts."""
        return self.accepted / self.drafted if self.drafted else None


def length_stats(
    generations: Sequence[SavedGeneration], *, limit: int, manifest: Manifest | None
) -> LengthStats:
    """Statistics over at least one generation; ``manifest`` gives the bytes of its caches."""
    lengths = sorted(g.num_tokens for g in generations)
    steps = [step_chars(g.text) for g in generations]
    spreads = [pstdev(own) / fmean(own) for own in steps if len(own) > 1]
    chars = [length for own in steps for length in own]
    peak = max(len(g.prompt_token_ids) + g.num_tokens for g in generations)
    return LengthStats(
        replies=len(generations),
        limit=limit,
        beyond=sum(_beyond(g, limit) for g in generations),
        cut_off=sum(g.cut_off for g in generations),
        mean_tokens=fmean(lengths),
        median_tokens=median(lengths),
        p90_tokens=lengths[-(-9 * len(lengths) // 10) - 1],
        max_tokens=lengths[-1],
        mean_steps=fmean(len(own) for own in steps),
        mean_step_chars=fmean(chars) if chars else None,
        step_spread=fmean(spreads) if spreads else None,
        peak_tokens=peak,
        kv_peak_bytes=state_bytes(manifest, peak),
        drafted=sum(sum(g.drafted) for g in generations),
        accepted=sum(sum(g.accepted) for g in generations),
        decode_steps=sum(g.steps for g in generations),
    )


def step_chars(text: str) -> list[int]:
    """Characters of each step of a reply."""
    parts = (part.strip() for part in _BLANK_LINES.split(text))
    return [len(part) for part in parts if part]


def state_bytes(manifest: Manifest | None, tokens: int) -> int | None:
    """Bytes of all states for one sequence; None without a bundle, or one without graphs."""
    if manifest is None or not manifest.graphs:
        return None
    return sum(
        sum(bytes_by_kind(graph, context=tokens).values()) for graph in manifest.graphs.values()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """Two files compared prompt by prompt (several replies to one prompt: their mean)."""

    prompts: int
    """Prompts that both files answer."""
    shorter: int
    """Of those, prompts with shorter replies in the second file."""
    mean_ratio: float | None
    """Length in the second file by length in the first, averaged over the prompts."""


def pairing(first: Sequence[SavedGeneration], second: Sequence[SavedGeneration]) -> Pairing:
    """Compare the replies to the prompts that both have."""
    ours, theirs = _mean_by_prompt(first), _mean_by_prompt(second)
    pairs = [(ours[prompt], theirs[prompt]) for prompt in ours if prompt in theirs]
    return Pairing(
        prompts=len(pairs),
        shorter=sum(b < a for a, b in pairs),
        mean_ratio=fmean(b / a for a, b in pairs) if pairs else None,
    )


def _mean_by_prompt(generations: Sequence[SavedGeneration]) -> dict[tuple[int, ...], float]:
    lengths: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for generation in generations:
        if generation.num_tokens:
            lengths[generation.prompt_token_ids].append(generation.num_tokens)
    return {prompt: fmean(own) for prompt, own in lengths.items()}


def _beyond(generation: SavedGeneration, limit: int) -> bool:
    # Cut off exactly at the limit: it would have gone on.
    return generation.num_tokens > limit or (generation.num_tokens == limit and generation.cut_off)
