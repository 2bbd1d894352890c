"""Sparse attention over several turns: a prompt holds the same rows however it came about."""

from __future__ import annotations

import dataclasses
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from selfdraft.manifest import AttentionPlan, AttentionSpec
from selfdraft.runtime.generation import Generation
from selfdraft.runtime.loop import DecodeLoop
from selfdraft.runtime.reference import ReferenceBackend
from selfdraft.runtime.request import Request
from selfdraft.runtime.sampling import SamplingParams

WINDOW = AttentionSpec(selector="window", sinks=1, local_blocks=2, budget_tokens=0)
PROMPT = tuple(int(token) for token in np.random.default_rng(3).integers(0, 64, size=200))


def _backend(tiny: ModuleType) -> ReferenceBackend:
    model = tiny.model_spec()
    weights, embedding = tiny.random_weights(model)
    plan = AttentionPlan(layers=(WINDOW,) * model.num_layers, mtp=WINDOW)
    manifest = dataclasses.replace(tiny.manifest(model, context_length=320), attention=plan)
    return ReferenceBackend(manifest, weights, embedding)


def _reply(loop: DecodeLoop, prompt: tuple[int, ...], count: int) -> tuple[int, ...]:
    request = Request(
        prompt_ids=prompt, max_tokens=count, sampling=SamplingParams(temperature=1.0, seed=5)
    )
    return tuple(event.token for event in Generation(loop, {0: request}))


def _keys(loop: DecodeLoop, rows: int) -> Any:
    states: Any = loop._states
    return [layer["k_cache"][0, :, :rows] for layer in states.backbone]


@pytest.mark.parametrize("drafts", [0, 1, 4])
def test_second_turn_equals_the_same_conversation_from_scratch(
    tiny: ModuleType, drafts: int
) -> None:
    backend = _backend(tiny)
    loop = DecodeLoop(backend, drafts=drafts)
    first = _reply(loop, PROMPT, 30)
    second = (*PROMPT, *first, 8, 1)
    reply = _reply(loop, second, 30)
    assert loop.result(0).reused_tokens >= len(PROMPT) - (drafts > 0)
    fresh = DecodeLoop(backend, drafts=0)
    assert reply == _reply(fresh, second, 30)
    rows = len(second) + 29
    for ours, theirs in zip(_keys(loop, rows), _keys(fresh, rows), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)


def test_sparse_rows_differ_from_dense_ones(tiny: ModuleType) -> None:
    """Else the test above could not fail."""
    loop = DecodeLoop(_backend(tiny), drafts=0)
    tokens = PROMPT + _reply(loop, PROMPT, 30)
    dense = DecodeLoop(_backend(tiny), drafts=0)
    _reply(dense, tokens, 1)
    rows = slice(len(PROMPT), len(tokens) - 1)
    last = (_keys(loop, 320)[-1][:, rows], _keys(dense, 320)[-1][:, rows])
    assert np.abs(last[0] - last[1]).max() > 1e-3
