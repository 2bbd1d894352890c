"""Requests that join by chunks between the steps of others, on every engine."""

from __future__ import annotations

import random
from types import ModuleType

from support.serving import Alone, check, requests, run_schedule

from selfdraft.runtime.loop import DecodeLoop
from selfdraft.runtime.serving.scheduler import Scheduler

CONTEXT = 96


def test_requests_that_join_between_steps_have_their_own_tokens(tiny: ModuleType) -> None:
    backend = tiny.backend(context_length=CONTEXT)
    rng = random.Random(3)
    loop = DecodeLoop(backend, batch=3, drafts=2, context_length=CONTEXT, prefill_rows=16)
    asked = requests(rng, 6, vocab_size=64, context=CONTEXT)
    check(run_schedule(Scheduler(loop), asked, rng), Alone(backend, context_length=CONTEXT))
    assert not any(loop.is_busy(slot) for slot in range(3))
