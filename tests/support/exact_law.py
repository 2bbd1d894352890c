"""The law of a reply, written out in plain Python, and a chain of production code that must follow it.

A toy text: logits of the next token depend on the last one alone, from a table ``[V, V]``; so do
the head's, from a table of its own. ``exact_law`` shares no code with the runtime.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from selfdraft.manifest import SamplingDefaults
from selfdraft.runtime.candidates import top_candidates
from selfdraft.runtime.logit_params import LogitParams
from selfdraft.runtime.request import Request
from selfdraft.runtime.request_chain import build_chain
from selfdraft.runtime.row_sampler import RowSampler
from selfdraft.runtime.sampling import SamplingParams, resolve_sampling
from selfdraft.runtime.verify import Verdict, accept_while_equal

Law = dict[tuple[int, ...], float]
END = 0
TRIAL_POSITIONS = 8
"""Positions of one trial: its draws share none with another one's."""


@dataclass(frozen=True, kw_only=True)
class Toy:
    """Two tables of logits, and what a request asks for."""

    target: Any
    draft: Any
    prompt: tuple[int, ...] = (1, 2)
    sampling: SamplingParams
    logits: LogitParams = field(default_factory=LogitParams)
    min_tokens: int = 0
    candidates: int = 3
    draft_ids: tuple[int, ...] | None = None
    """A trimmed draft vocabulary; None: everything."""

    @property
    def vocab_size(self) -> int:
        return len(self.target)


def toy(vocab_size: int, *, seed: int = 0, **options: Any) -> Toy:
    """Random tables; the head knows the target and errs."""
    rng = np.random.default_rng(seed)
    target = rng.standard_normal((vocab_size, vocab_size)) * 1.2
    draft = target + rng.standard_normal(target.shape) * 0.8
    return Toy(target=target.astype(np.float32), draft=draft.astype(np.float32), **options)


def exact_law(case: Toy, length: int) -> Law:
    """Probability of the first ``length`` tokens together; a reply may end early with ``END``."""
    laws: Law = {(): 1.0}
    for _ in range(length):
        longer: Law = {}
        for reply, mass in laws.items():
            if reply and reply[-1] == END:
                longer[reply] = longer.get(reply, 0.0) + mass
                continue
            for token, share in enumerate(_next_law(case, reply)):
                if share:
                    longer[(*reply, token)] = mass * share
        laws = longer
    return laws


def _next_law(case: Toy, reply: tuple[int, ...]) -> list[float]:
    text = (*case.prompt, *reply)
    logits = [float(value) for value in case.target[text[-1]]]
    options = case.logits
    for token in range(case.vocab_size):
        if token in text:
            factor = options.repetition_penalty
            logits[token] = logits[token] / factor if logits[token] > 0 else logits[token] * factor
        count = reply.count(token)
        logits[token] -= options.frequency_penalty * count + options.presence_penalty * (count > 0)
        logits[token] += options.logit_bias.get(token, 0.0)
    banned = set(options.banned_token_ids)
    if options.allowed_token_ids is not None:
        banned |= set(range(case.vocab_size)) - set(options.allowed_token_ids)
    if len(reply) < case.min_tokens:
        banned.add(END)
    size = options.no_repeat_ngram_size
    if size:
        grams = {text[i : i + size] for i in range(len(text) - size + 1)}
        banned |= {t for t in range(case.vocab_size) if (*text, t)[-size:] in grams}
    for token in banned:
        logits[token] = -math.inf
    return _filtered(logits, case.sampling)


def _filtered(logits: list[float], sampling: SamplingParams) -> list[float]:
    assert sampling.temperature is not None
    if sampling.temperature == 0:
        best = max(range(len(logits)), key=lambda token: (logits[token], -token))
        return [float(token == best) for token in range(len(logits))]
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    weights = [math.exp((logits[t] - logits[order[0]]) / sampling.temperature) for t in order]
    if sampling.top_k:
        weights = weights[: sampling.top_k]
    total, mass, kept = sum(weights), 0.0, []
    for weight in weights:
        if mass >= (sampling.top_p or 1.0) * total and sampling.top_p:
            break
        mass += weight
        if weight >= (sampling.min_p or 0.0) * weights[0]:
            kept.append(weight)
    shares = [0.0] * len(logits)
    for token, weight in zip(order, kept, strict=False):
        shares[token] = weight / sum(kept)
    return shares


class TableRow:
    """A row of a table as the sampler sees it."""

    def __init__(self, row: Any) -> None:
        self._row = row

    def full(self) -> Any:
        return self._row

    def entries(self, ids: Any) -> Any:
        return self._row[ids]


class Sampled:
    """Replies of the runtime's own sampler, drafts and verdict, one a trial."""

    def __init__(self, case: Toy, *, drafts: int, verdict: Verdict = accept_while_equal) -> None:
        self._case, self._drafts, self._verdict = case, drafts, verdict
        law = resolve_sampling(case.sampling, SamplingDefaults())
        request = Request(
            prompt_ids=case.prompt,
            sampling=case.sampling,
            logits=case.logits,
            min_tokens=case.min_tokens,
        )
        self._chain = build_chain(request, vocab_size=case.vocab_size, end_ids=[END])
        self.sampler = RowSampler(law, vocab_size=case.vocab_size)
        known = list(case.draft_ids or range(case.vocab_size))
        self._target = [top_candidates(row, case.candidates) for row in case.target]
        self._head = []
        for row in case.draft:
            values, ids = top_candidates(row[known], len(known))
            self._head.append((values, np.array(known)[ids]))

    def count(self, trials: int, *, length: int) -> Counter[tuple[int, ...]]:
        """How often each reply of ``length`` tokens (or to its end) came up."""
        seen: Counter[tuple[int, ...]] = Counter()
        for trial in range(trials):
            seen[tuple(self._reply(trial * TRIAL_POSITIONS, length))] += 1
        return seen

    def _reply(self, first: int, length: int) -> list[int]:
        self.sampler._chain = self._chain.clone() if self._chain else None
        reply: list[int] = []
        while len(reply) < length and END not in reply:
            depth = min(self._drafts, length - len(reply) - 1)
            text = [*self._case.prompt, *reply]
            reply += self.step(text, first + len(reply), depth)
        return reply

    def step(self, text: list[int], position: int, depth: int) -> list[int]:
        """Tokens of one step."""
        drafts, laws = self.propose(text, position, depth)
        last = [text[-1], *drafts]

        def draw(row: int) -> int:
            values, ids = self._target[last[row]]
            logits = TableRow(self._case.target[last[row]])
            if row < len(laws):
                return self.sampler.draw_against(
                    values,
                    ids,
                    position=position + row,
                    row=logits,
                    draft=drafts[row],
                    draft_law=laws[row],
                )
            return self.sampler.draw(values, ids, position=position + row, row=logits)

        return list(self._verdict(draw, drafts, position=position, ends=END.__eq__).tokens)

    def propose(self, text: list[int], position: int, depth: int) -> tuple[list[int], list[Any]]:
        """Drafts of one step, and what they were drawn from (match mode: nothing)."""
        rejecting = self._case.sampling.verification == "rejection"
        chooser = self.sampler.drawn_drafts(position)
        drafts: list[int] = []
        for _ in range(depth):
            values, ids = self._head[(drafts or text)[-1]]
            drafts.append(chooser(values, ids) if rejecting else int(ids[0]))
        return drafts, chooser.laws


def chi_square_excess(seen: Counter[Any], exact: dict[Any, float]) -> float:
    """Chi-square statistic by its critical value at p = 0.001 (Wilson-Hilferty).

    Cells expected fewer than five times count as one cell.
    """
    if set(seen) - set(exact):
        return math.inf
    trials = sum(seen.values())
    large = {outcome for outcome, share in exact.items() if share * trials >= 5}
    cells = [(seen[outcome], exact[outcome] * trials) for outcome in large]
    rest = [outcome for outcome in exact if outcome not in large]
    if rest:
        cells.append((sum(seen[o] for o in rest), sum(exact[o] for o in rest) * trials))
    statistic = sum((found - expected) ** 2 / expected for found, expected in cells)
    freedom = len(cells) - 1
    if not freedom:
        return 0.0
    spread = 2 / (9 * freedom)
    return statistic / (freedom * (1 - spread + 3.09 * math.sqrt(spread)) ** 3)
