"""Whatever joins, leaves or gives up beside it, a request has the tokens that it has alone."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pytest
from support.random_drafts import RandomDrafts
from support.scripted_backend import ScriptedBackend
from support.serving import Alone, check, requests, run_schedule
from support.tiny_model import backend

from selfdraft.runtime.loop import DecodeLoop
from selfdraft.runtime.serving.options import ServingOptions
from selfdraft.runtime.serving.scheduler import Scheduler

CONTEXT = 96
QUICK, ALL = 24, 500


@cache
def tiny() -> Any:
    return backend(context_length=CONTEXT)


def serve(engine: Any, seed: int, alone: Alone, *, most: int = 3, **options: Any) -> None:
    rng = random.Random(seed)
    loop = DecodeLoop(
        engine,
        batch=rng.choice([1, 2, 3, 4]),
        drafts=RandomDrafts(most, seed=seed),
        context_length=CONTEXT,
        prefill_rows=rng.choice([1, 5, 16, 64]),
        **options,
    )
    asked = requests(rng, rng.randint(1, 9), vocab_size=16, context=CONTEXT)
    check(run_schedule(Scheduler(loop, ServingOptions()), asked, rng), alone)
    assert not loop.active and not any(loop.is_busy(slot) for slot in range(loop.batch))


@pytest.mark.parametrize("seed", range(QUICK))
def test_requests_have_the_tokens_they_have_alone(seed: int) -> None:
    serve(tiny(), seed, Alone(tiny(), context_length=CONTEXT))


@pytest.mark.slow
def test_500_random_schedules_change_no_token() -> None:
    alone = Alone(tiny(), context_length=CONTEXT)
    for seed in range(ALL):
        serve(tiny(), seed, alone)


@pytest.mark.parametrize("seed", range(8))
def test_caches_hold_their_own_text_only(seed: int) -> None:
    """The scripted backend refuses a row whose cache is not the text before it, the head's too."""
    import support.tiny_model

    scripted: Any = ScriptedBackend(
        support.tiny_model, lambda h: (3 * h[-1] + len(h)) % 16, errors=0.3, context_length=CONTEXT
    )
    serve(scripted, seed, Alone(scripted, context_length=CONTEXT))
