"""States that TensorRT's own kernels compute: bound apart, copied behind the pass (docs/tensorrt.md, States)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support import tiny_model
from support.hybrid import tiny_hybrid

from selfdraft.manifest import capacity_for
from selfdraft.recurrent import STATE_LEN, state_length
from selfdraft.runtime.backend import Step
from selfdraft.runtime.trt.allocation import plan_allocation

pytest.importorskip("torch", reason="the exporter: pip install 'selfdraft[export]'")

BATCH = 3


@pytest.fixture
def backend(engine_maker: Any) -> Any:
    """A hybrid model on the double, which computes while the test runs."""
    from support.trt_double.install import installed

    def make(model: Any, **limits: Any) -> Any:
        return engine_maker(tiny_model.manifest(model, **limits), *tiny_model.random_weights(model))

    made = tiny_hybrid(SimpleNamespace(**vars(tiny_model) | {"backend": make}))
    with installed(engine_maker.double):
        yield made


def step_at(past: list[int], rows: list[int]) -> Step:
    return Step(
        past_len=np.array(past),
        row_count=np.array(rows),
        attend_all=np.zeros(BATCH, np.int64),
        row_index=np.zeros((BATCH, 1), np.int64),
    )


def run(backend: Any, states: Any, past: list[int], rows: list[int]) -> list[int]:
    """Tokens inside the recurrent states of every slot, behind a step."""
    ids = np.ones((BATCH, 5), np.int64)
    backend.run_backbone(states, step_at(past, rows), ids)
    own = np.empty((BATCH, 1), np.int64)
    backend._gpu.fetch(own, states.addresses()[STATE_LEN])
    return [int(n) for n in own[:, 0]]


def test_length_of_the_recurrent_states_moves_on_behind_every_pass(
    backend: Any, engine_maker: Any
) -> None:
    """The first pass is queued as it is, the others are launches of its record: the copy is part of it."""
    states = backend.allocate(batch=BATCH, capacity=capacity_for(64))
    lengths, past = [0, 0, 0], [0, 0, 0]
    launches = engine_maker.double.driver.num_launches
    for rows in ([5, 1, 0], [5, 5, 3], [4, 5, 5], [5, 0, 5], [1, 5, 5]):
        found = run(backend, states, past, rows)
        lengths = [
            state_length(p, n) if n else old for p, n, old in zip(past, rows, lengths, strict=True)
        ]
        assert found == lengths
        past = [p + n for p, n in zip(past, rows, strict=True)]
    assert lengths == [16, 8, 8]
    assert engine_maker.double.driver.num_launches - launches == 4
    record = engine_maker.double.driver.graphs[-1]
    assert [work.label for work in record] == ["enqueue", "copy across", "copy out"]


def test_only_what_no_plugin_writes_is_bound_apart(backend: Any) -> None:
    states = backend.allocate(batch=BATCH, capacity=capacity_for(64))
    run(backend, states, [0, 0, 0], [5, 5, 5])
    (own,) = states.passes.values()
    addresses = own.context.addresses
    apart = [
        state.name
        for state in own.graph.states
        if addresses[state.input] != addresses[state.output]
    ]
    assert apart == [STATE_LEN] == list(states.outputs)
    own.context.addresses["state_len_out"] = own.context.addresses["state_len"]
    with pytest.raises(AssertionError, match="share memory"):
        own.context.execute_async_v3(0x5EED)


def test_both_places_are_counted(backend: Any) -> None:
    limits = backend.limits
    states = backend.allocate(batch=limits.batch, capacity=limits.capacity)
    planned = plan_allocation(backend.manifest, limits, drafts=1)
    assert sum(graph.states for graph in planned.values()) == states.num_bytes
    kept = sum(buffer.num_bytes for buffer in states.buffers.values())
    assert states.num_bytes - kept == 8 * limits.batch
