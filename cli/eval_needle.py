"""Needles: facts at a depth of a long text, asked for behind it."""

from __future__ import annotations

import random

from selfdraft.cli.eval_cases import Case
from selfdraft.cli.eval_wording import Wording


def needle_case(rng: random.Random, wording: Wording, *, depth: float, keys: int) -> Case:
    """``keys`` facts, the one asked for at ``depth`` and the others anywhere."""
    facts = wording.draw_facts(rng, keys)
    places = [depth] + [rng.random() for _ in facts[1:]]
    return Case(
        lead=rng.choice(wording.leads),
        planted=tuple(
            (place, wording.statement(rng, fact)) for place, fact in zip(places, facts, strict=True)
        ),
        question=wording.question(rng, facts[0]),
        answers=(facts[0].value,),
    )
