"""Sampling parameters, and the exact law of a token under them.

Order: temperature, top-k, top-p, min-p. Tokens are ranked by logit, equal logits by ascending id
(the lower id wins at rank k and at the top-p cut).

- top-k keeps the first ``top_k`` ranks.
- top-p keeps the shortest prefix of ranks whose share of the mass top-k kept is at least ``top_p``.
- min-p keeps tokens at least ``min_p`` times as probable as the first.

The token is drawn by inverse transform over the kept ranks. Temperature 0 is the first rank.
"""

from __future__ import annotations

import dataclasses
import math
import secrets
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfdraft.errors import ConfigError
from selfdraft.manifest import SamplingDefaults
from selfdraft.runtime.checks import check_number
from selfdraft.runtime.result import Verification
from selfdraft.strict import closest_hint

MAX_SEED = 2**64 - 1
MODES: tuple[Verification, ...] = ("greedy", "match", "rejection")
MIN_TEMPERATURE = 1e-30
"""Below it logits divided by the temperature overflow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are drawn. ``None`` leaves the choice to the checkpoint, then to selfdraft.

    Raises ``ConfigError`` for values out of range.
    """

    temperature: float | None = None
    """0: greedy."""
    top_k: int | None = None
    """0: every token."""
    top_p: float | None = None
    """1: every token."""
    min_p: float | None = None
    """0: every token."""
    seed: int | None = None
    """Same seed, same tokens; in greedy and match mode with speculation on or off. None: drawn
    afresh."""
    verification: str | None = None
    """How drafts are judged: greedy, match or rejection. None: greedy at temperature 0, else match."""

    def __post_init__(self) -> None:
        check_number(
            "temperature",
            self.temperature,
            lambda x: x == 0 or MIN_TEMPERATURE <= x < math.inf,
            f"0 (greedy), or {MIN_TEMPERATURE:g} and more",
        )
        check_number("top_k", self.top_k, lambda x: x >= 0, "a whole number, 0 or more", whole=True)
        check_number("top_p", self.top_p, lambda x: 0 < x <= 1, "above 0 and at most 1")
        check_number("min_p", self.min_p, lambda x: 0 <= x <= 1, "from 0 to 1")
        check_number(
            "seed", self.seed, lambda x: 0 <= x <= MAX_SEED, "from 0 to 2**64 - 1", whole=True
        )
        self._check_verification()

    def _check_verification(self) -> None:
        mode = self.verification
        if mode is None:
            return
        if mode not in MODES:
            raise ConfigError(
                f"unknown mode {mode!r}{closest_hint(str(mode), MODES)}",
                hint=f"choose one of: {', '.join(MODES)}",
            )
        if mode == "greedy" and self.temperature:
            raise ConfigError(
                f"mode greedy has no temperature, {self.temperature} is given",
                hint="leave the temperature out, or use mode match",
            )
        if mode != "greedy" and self.temperature == 0:
            raise ConfigError(
                f"mode {mode} draws tokens, at temperature 0 there is nothing to draw",
                hint="give a temperature above 0, or use mode greedy",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingLaw:
    """Sampling parameters with nothing left to choose."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int

    @property
    def greedy(self) -> bool:
        """Whether the first rank is always drawn."""
        return self.temperature == 0


def resolve_sampling(params: SamplingParams, defaults: SamplingDefaults) -> SamplingLaw:
    """``params`` with the checkpoint's defaults, then greedy and unfiltered, for every None.

    A mode of verification decides on the temperature where that is not given.
    """

    def chosen(name: str, fallback: float) -> float:
        for source in (params, defaults):
            value = getattr(source, name)
            if value is not None:
                return float(value)
        return fallback

    # The checkpoint's values pass through the same checks as the user's.
    SamplingParams(**dataclasses.asdict(defaults))
    temperature = chosen("temperature", 0.0)
    mode = params.verification
    if mode == "greedy":
        temperature = 0.0
    elif mode is not None and temperature == 0:
        temperature = 1.0
    return SamplingLaw(
        temperature=temperature,
        top_k=int(chosen("top_k", 0)),
        top_p=chosen("top_p", 1.0),
        min_p=chosen("min_p", 0.0),
        seed=secrets.randbits(64) if params.seed is None else params.seed,
    )


def verification_of(params: SamplingParams, law: SamplingLaw) -> Verification:
    """How drafts are judged under ``law``, which ``params`` gave."""
    if law.greedy:
        return "greedy"
    return "rejection" if params.verification == "rejection" else "match"


def ranking(row: NDArray[np.floating[Any]]) -> NDArray[np.int64]:
    """Token ids of ``row [V]`` by descending logit, equal logits by ascending id."""
    return np.argsort(-row, kind="stable")


def filtered_distribution(row: NDArray[np.floating[Any]], law: SamplingLaw) -> NDArray[np.float64]:
    """Probability ``[V]`` of each token for logits ``row [V]``: the law, written out."""
    order = ranking(row)
    if law.greedy:
        order = order[:1]
        ranked = np.ones(1)
    else:
        logits = row[order].astype(np.float64) / law.temperature
        ranked = np.exp(logits - logits[0])
    if law.top_k:
        ranked = ranked[: law.top_k]
    ranked = ranked / ranked.sum()
    before = np.cumsum(ranked) - ranked
    kept = (before < law.top_p) & (ranked >= law.min_p * ranked[0])
    probabilities = np.zeros(len(row))
    probabilities[order[: len(ranked)]] = np.where(kept, ranked, 0.0)
    return np.asarray(probabilities / probabilities.sum())
