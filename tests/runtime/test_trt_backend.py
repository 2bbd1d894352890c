"""What the TensorRT backend does with memory, copies, waits and CUDA graphs, on the double.

The loop tests run on it too (conftest.py, "tensorrt double"); nothing here has seen a GPU.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the exporter: pip install 'selfdraft[export]'")
from support.engine_bundle import build_bundle, open_backend, write_engine_bundle
from support.refusals import refused
from support.trt_double.execution import FakeContext, FakeEngine
from support.trt_double.install import Double, installed, make_double

from selfdraft.errors import BundleError, ConfigError, DeviceError, ResourceError
from selfdraft.manifest import StateSpec, capacity_for
from selfdraft.runtime.backend import Step
from selfdraft.runtime.bundle import Bundle
from selfdraft.runtime.loop import DecodeLoop
from selfdraft.runtime.request import Request
from selfdraft.runtime.sampling import SamplingParams
from selfdraft.runtime.slot_cache import used_part
from selfdraft.runtime.trt.gpu import Gpu
from selfdraft.runtime.trt.passes import Pass
from selfdraft.runtime.trt.states import allocate_states, export_slot, import_slot

PROMPT = (0, 5, 9, 2, 7)


@pytest.fixture(scope="session")
def bundle(copy_model: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The crafted model whose head errs now and then, with the graphs of the ``cpu`` target."""
    from support import tiny_model

    spec = copy_model.spec()
    weights, embedding = copy_model.weights_and_embedding(spec, noise=0.3, seed=0)
    folder = tmp_path_factory.mktemp("engine") / "bundle"
    return write_engine_bundle(folder, tiny_model.manifest(spec), weights, embedding)


@pytest.fixture
def double(bundle: Bundle) -> Iterator[Double]:
    with installed(make_double()) as double:
        build_bundle(bundle)
        yield double


@pytest.fixture
def backend(double: Double, bundle: Bundle) -> Any:
    return open_backend(bundle)


def started(backend: Any, *, drafts: int, batch: int = 1, **sampling: Any) -> DecodeLoop:
    loop = DecodeLoop(backend, drafts=drafts, batch=batch)
    params = SamplingParams(**sampling)
    loop.begin({s: Request(prompt_ids=(*PROMPT, s), sampling=params) for s in range(batch)})
    return loop


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // 256) * 256


def warm(loop: DecodeLoop, steps: int = 4) -> DecodeLoop:
    for _ in range(steps):
        loop.step()
    return loop


@pytest.mark.parametrize("drafts", [0, 1, 4])
def test_no_address_changes_and_nothing_is_allocated_once_it_runs(
    backend: Any, double: Double, drafts: int
) -> None:
    loop = warm(started(backend, drafts=drafts, batch=2))
    addresses = loop._states.addresses()  # type: ignore[attr-defined]
    known = {id(c): (dict(c.addresses), c.num_enqueued) for c in double.tensorrt.contexts}
    count = double.device.num_allocations
    warm(loop, 25)
    assert loop._states.addresses() == addresses  # type: ignore[attr-defined]
    assert double.device.num_allocations == count
    now = {id(c): (dict(c.addresses), c.num_enqueued) for c in double.tensorrt.contexts}
    assert now == known, "after the first pass only recorded graphs are launched"


@pytest.mark.parametrize("drafts", [0, 1, 3])
def test_greedy_step_copies_no_more_than_candidates_to_the_host(
    backend: Any, double: Double, drafts: int
) -> None:
    loop = warm(started(backend, drafts=drafts))
    double.device.copies.clear()
    warm(loop, 10)
    candidates = backend.manifest.limits.candidates
    rows = drafts + 1
    # Each tensor starts at a multiple of 256 bytes.
    target = _aligned(rows * candidates * 4) + _aligned(rows * candidates * 8)
    head = _aligned(8) + _aligned(candidates * 4) + _aligned(candidates * 8)
    sizes = [copy.num_bytes for copy in double.device.copies if copy.kind.startswith("out")]
    assert sorted(sizes) == sorted([target] * 10 + [head] * 10 * drafts), "one copy a pass"
    assert {copy.kind for copy in double.device.copies} <= {"in", "out", "across"}


def test_links_of_a_chain_do_not_wait_for_the_host(
    backend: Any, double: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the host waits for a draft, the next link is queued already."""
    loop = warm(started(backend, drafts=4))
    behind: list[int] = []
    wait = Pass.wait

    def noted(self: Pass) -> None:
        if self.pending:
            wait(self)
            behind.append(len(double.device.queue))

    monkeypatch.setattr(Pass, "wait", noted)
    loop.step()
    assert [count > 0 for count in behind] == [True, True, True, False, False]


@pytest.mark.parametrize("drafts", [2, 3])
def test_chains_are_those_of_the_reference(
    backend: Any, tiny: ModuleType, copy_model: ModuleType, drafts: int
) -> None:
    """Same tokens, and the same drafts accepted: no link read another one's ids or states."""
    results = []
    for own in (backend, copy_model.backend(tiny, noise=0.3)):
        loop = warm(started(own, drafts=drafts), 12)
        results.append((loop.tokens(0), loop.result(0).accepted, loop.result(0).drafted))
    assert results[0] == results[1]
    assert results[0][1][0] > 3 and results[0][1][-1] > 0


def test_chunks_of_a_prompt_reuse_buffers_whose_passes_nobody_waited_for(backend: Any) -> None:
    """The head's passes over a prompt are read by no one; the third one takes the first one's place."""
    tokens = []
    for chunk in (64, 2):
        loop = DecodeLoop(backend, drafts=1, prefill_rows=chunk)
        loop.begin({0: Request(prompt_ids=tuple(range(17)))})
        tokens.append(warm(loop, 6).tokens(0))
    assert tokens[0] == tokens[1]


def test_every_decode_shape_is_recorded_once_and_prompts_never(
    backend: Any, double: Double
) -> None:
    loop = warm(started(backend, drafts=2), 6)
    assert loop.active
    decode = [c for c in double.tensorrt.contexts if c.recorded]
    prompt = [c for c in double.tensorrt.contexts if not c.recorded]
    assert {c.num_enqueued for c in decode} == {2}, "one run, one record"
    rows = sorted((c.shapes["input_ids"][1], "hidden" in c.shapes) for c in decode)
    assert rows == [(1, True), (3, False), (3, True)]
    assert [c.shapes["input_ids"] for c in prompt] == [(1, 66), (1, 66)]
    assert len(double.driver.graphs) == len(decode) < double.driver.num_launches


def test_without_cuda_graphs_the_tokens_are_the_same(
    double: Double, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = []
    for choice in ("1", "0"):
        monkeypatch.setenv("SELFDRAFT_CUDA_GRAPHS", choice)
        before = double.driver.num_launches
        loop = warm(started(open_backend(bundle), drafts=2), 8)
        tokens.append(loop.tokens(0))
        assert (double.driver.num_launches > before) == (choice == "1")
    assert tokens[0] == tokens[1]


def test_rows_and_single_logits_are_those_of_the_pass(backend: Any) -> None:
    states = backend.allocate(batch=2, capacity=capacity_for(64))
    step = Step(
        past_len=np.zeros(2, np.int64),
        row_count=np.array([3, 2]),
        attend_all=np.zeros(2, np.int64),
        row_index=np.array([[0, 2], [1, 0]]),
    )
    ids = np.array([[0, 4, 5], [0, 9, 0]])
    output = backend.run_backbone(states, step, ids)
    rows = backend.read_rows(output.logits, [(0, 0), (0, 1), (1, 0), (1, 1)])
    assert rows.shape == (4, backend.manifest.model.vocab_size)
    whole = backend.to_host(output.logits)
    np.testing.assert_array_equal(rows, whole.reshape(4, -1))
    for count in (3, 40):
        wanted = np.arange(count)
        found = backend.read_entries(output.logits, (1, 0), wanted)
        np.testing.assert_array_equal(found, whole[1, 0, :count])
    best = np.take_along_axis(whole, output.top_ids, axis=-1)
    np.testing.assert_array_equal(best, output.top_values)
    assert backend.to_host(output.hidden).shape == (2, 3, backend.manifest.model.hidden_size)


def test_equal_candidates_come_in_the_order_of_their_ids(backend: Any) -> None:
    states = backend.allocate(batch=1, capacity=capacity_for(64))
    one = np.array([1])
    step = Step(past_len=one * 0, row_count=one, attend_all=one * 0, row_index=np.array([[0]]))
    backend.run_backbone(states, step, np.array([[0]]))
    (own,) = states.passes.values()
    values, ids = own.listed("top_values"), own.listed("top_ids")
    values[0, 0, :4], ids[0, 0, :4] = [7.0, 9.0, 9.0, 9.0], [1, 60, 3, 20]
    values[0, 0, 4:] = -np.arange(values.shape[2] - 4)
    own.sort_candidates()
    assert ids[0, 0, :4].tolist() == [3, 20, 60, 1]
    assert values[0, 0, :4].tolist() == [9.0, 9.0, 9.0, 7.0]


def test_draft_from_hidden_states_that_the_host_kept(backend: Any) -> None:
    states = backend.allocate(batch=1, capacity=capacity_for(64))
    step = Step(
        past_len=np.zeros(1, np.int64),
        row_count=np.array([2]),
        attend_all=np.zeros(1, np.int64),
        row_index=np.array([[1]]),
    )
    output = backend.run_backbone(states, step, np.array([[0, 4]]))
    kept = backend.to_host(output.hidden)
    ids = np.array([[4, 8]])
    expected = backend.to_host(backend.run_mtp(states, step, ids, output.hidden).draft_ids).copy()
    found = backend.to_host(backend.run_mtp(states, step, ids, kept).draft_ids)
    assert found.tolist() == expected.tolist()


def test_slot_goes_to_the_host_and_back_in_every_layout(double: Double, bundle: Bundle) -> None:
    """Tokens in one piece a head (CPU), in blocks of all heads (Orin), and a state without tokens."""
    shapes: dict[str, tuple[int | str, ...]] = {
        "by head": ("batch", 3, "capacity", 4),
        "by block": ("batch", "blocks", 3, 64, 4),
        "summaries": ("batch", 3, "blocks", 2, 4),
        "recurrent": ("batch", 3, 5),
    }
    states = [
        StateSpec(name=n, kind="kv", dtype="float32", shape=s, input=n, output=n, aliased=True)
        for n, s in shapes.items()
    ]
    graph = dataclasses.replace(bundle.manifest.graphs["mtp"], states=tuple(states))
    manifest = dataclasses.replace(bundle.manifest, graphs={"mtp": graph})
    gpu, rng = Gpu(), np.random.default_rng(3)
    first = allocate_states(gpu, manifest, batch=2, capacity=192)
    whole = {s.name: rng.random(s.sizes(batch=2, capacity=192), np.float32) for s in states}
    for name, array in whole.items():
        gpu.store(first.addresses()[name], array)
    lengths = {"mtp": 70}
    arrays = export_slot(gpu, manifest, first, slot=1, lengths=lengths)
    for state in states:
        expected = used_part(whole[state.name], state.shape, slot=1, length=70)
        np.testing.assert_array_equal(arrays[state.name], expected)
    second = allocate_states(gpu, manifest, batch=2, capacity=192)
    import_slot(gpu, manifest, second, slot=0, lengths=lengths, arrays=arrays)
    again = export_slot(gpu, manifest, second, slot=0, lengths=lengths)
    assert all(np.array_equal(again[name], arrays[name]) for name in shapes)
    untouched = export_slot(gpu, manifest, second, slot=1, lengths=lengths)
    assert not any(array.any() for array in untouched.values()), "zeroed, and another slot's"


def test_queued_work_ends_before_its_states_go(backend: Any, double: Double) -> None:
    loop = warm(started(backend, drafts=1))
    loop._drafting.settle()  # type: ignore[union-attr]
    assert double.device.queue, "the head's pass is not waited for"
    left: list[int] = []
    context = next(iter(loop._states.passes.values())).context  # type: ignore[attr-defined]
    weakref.finalize(context, lambda: left.append(len(double.device.queue)))
    del context, loop
    gc.collect()
    assert left == [0]


def test_collector_is_off_while_a_step_is_recorded(
    backend: Any, double: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    """States in a circle of objects wait for the stream when they go, which would end a capture."""
    during: list[tuple[str, bool]] = []
    names = ("cuStreamBeginCapture_v2", "cuStreamEndCapture")

    def noted(name: str, call: Any, *arguments: Any) -> Any:
        during.append((name, gc.isenabled()))
        return call(*arguments)

    for name in names:
        call = getattr(double.driver, name)
        monkeypatch.setattr(double.driver, name, functools.partial(noted, name, call))
    warm(started(backend, drafts=0), 2)
    assert during == [(name, False) for name in names]
    assert gc.isenabled()


def test_shapes_beyond_the_engine_are_refused_with_the_command(backend: Any) -> None:
    limits = backend.limits
    with refused("5 slots", "built for 4"):
        backend.allocate(batch=5, capacity=64)
    with refused(f"of {limits.capacity} (context {limits.context})"):
        backend.allocate(batch=1, capacity=limits.capacity + 64)
    states = backend.allocate(batch=1, capacity=capacity_for(64))
    many = limits.prefill_rows + 1
    one = np.array([1])
    step = Step(past_len=one * 0, row_count=one, attend_all=one, row_index=np.array([[0]]))
    with refused(f"{many} rows", f"built for {limits.prefill_rows}"):
        backend.run_backbone(states, step, np.zeros((1, many), np.int64))
    wide = Step(past_len=one, row_count=one, attend_all=one, row_index=np.zeros((1, 10), np.int64))
    with refused("10 logit_rows"):
        backend.run_backbone(states, wide, np.zeros((1, 1), np.int64))


@pytest.mark.parametrize("fails", [None, "cuStreamEndCapture", "cuGraphInstantiateWithFlags"])
def test_every_recorded_graph_is_freed_whether_or_not_it_can_be_launched(
    bundle: Bundle, double: Double, monkeypatch: pytest.MonkeyPatch, fails: str | None
) -> None:
    freed: list[int] = []
    monkeypatch.setattr(double.driver, "cuGraphDestroy", lambda graph: freed.append(graph.value))
    double.driver.fails = fails
    with refused(f"{fails} failed", error=DeviceError) if fails else contextlib.nullcontext():
        warm(started(open_backend(bundle), drafts=0))
    assert freed == list(range(1, len(double.driver.graphs) + 1)) != []


def test_failures_of_the_libraries_are_told_in_our_words(
    backend: Any, double: Double, bundle: Bundle
) -> None:
    loop = warm(started(backend, drafts=1))
    double.tensorrt.fails_to_run = True
    with refused("backbone.onnx does not run: a kernel failed", error=DeviceError):
        started(backend, drafts=0)
    double.tensorrt.fails_to_run = False
    assert loop.active
    double.driver.fails = "cuGraphLaunch"
    with refused("cuGraphLaunch failed with CUDA error 900", error=DeviceError):
        loop.step()
    double.driver.fails = "cuStreamEndCapture"
    with refused("cuStreamEndCapture failed", error=DeviceError):
        warm(started(open_backend(bundle), drafts=0))
    assert double.device.capturing is None
    double.device.memory_bytes = 0
    with refused("bytes of device memory", error=ResourceError):
        backend.allocate(batch=1, capacity=64)


@pytest.mark.parametrize(
    ("owner", "method", "answer", "told"),
    [
        (FakeEngine, "create_execution_context", None, "has no execution context"),
        (FakeContext, "set_optimization_profile_async", False, "takes no profile prefill"),
        (FakeContext, "set_tensor_address", False, "takes no address for"),
        (FakeContext, "set_input_shape", False, "of shape"),
        (FakeEngine, "get_tensor_location", "host", "on the host"),
        (FakeEngine, "get_tensor_dtype", "BF16", "the engine has BF16 as"),
        (FakeEngine, "num_optimization_profiles", 1, "the engine has 1 profiles, not 2"),
    ],
)
def test_what_an_engine_refuses_or_has_otherwise_is_told(
    double: Double,
    bundle: Bundle,
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    method: str,
    answer: Any,
    told: str,
) -> None:
    value = answer if method.startswith("num_") else lambda *_: answer
    monkeypatch.setattr(owner, method, value)
    error = BundleError if told.startswith("the engine has") else DeviceError
    with refused(told, error=error):
        started(open_backend(bundle), drafts=0)


def test_a_thread_of_a_service_runs_what_another_one_opened(backend: Any, double: Double) -> None:
    """CUDA's context belongs to a thread, and none may end with one left (pycuda aborts then)."""
    expected = warm(started(backend, drafts=2), 8).tokens(0)
    with ThreadPoolExecutor(1) as pool:
        loop = pool.submit(lambda: warm(started(backend, drafts=2), 8)).result()
        assert {t for t, n in double.device.entered.items() if n} == {threading.get_ident()}
    assert loop.tokens(0) == expected


class TestTeethOfTheDouble:
    """The double fails where the backend breaks a rule; each of these breaks one."""

    def test_reading_without_waiting_gives_poison(
        self, backend: Any, double: Double, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        loop = warm(started(backend, drafts=0))
        expected = warm(started(backend, drafts=0), 10).tokens(0)
        monkeypatch.setattr(Pass, "wait", lambda self: setattr(self, "pending", False))
        with contextlib.suppress(ConfigError, ValueError, IndexError, KeyError):
            warm(loop, 6)  # poison is no token
        assert loop.tokens(0) != expected
        double.device.queue.clear()  # it would run on poison

    def test_inputs_overwritten_too_early_are_wrong(self, backend: Any, double: Double) -> None:
        states = backend.allocate(batch=1, capacity=capacity_for(64))
        one = np.array([1])
        step = Step(past_len=one * 0, row_count=one, attend_all=one * 0, row_index=np.array([[0]]))
        found = backend._binder.bind("backbone", states, rows=1, logit_rows=1)
        found.fill(step, np.array([[3]]))
        found.run()
        found.inputs.host("input_ids", found.sizes)[...] = 5
        found.wait()
        wrong = found.listed("top_values").copy()
        for token, same in ((3, False), (5, True)):
            output = backend.run_backbone(states, step, np.array([[token]]))
            assert np.array_equal(output.top_values, wrong) == same

    def test_moving_a_state_or_binding_it_twice_is_refused(self, backend: Any) -> None:
        loop = warm(started(backend, drafts=0))
        context = next(iter(loop._states.passes.values())).context  # type: ignore[attr-defined]
        with pytest.raises(AssertionError):
            context.set_tensor_address("k_cache_0", context.addresses["k_cache_0"] + 512)
        states = loop._states
        other = backend._binder.bind("backbone", states, rows=2, logit_rows=1).context
        other.addresses["k_cache_0_out"] += 512
        with pytest.raises(AssertionError, match="not in place"):
            other.execute_async_v3(0x5EED)

    def test_capturing_before_a_run_allocating_and_waiting_are_refused(
        self, backend: Any, double: Double
    ) -> None:
        states = backend.allocate(batch=1, capacity=capacity_for(64))
        found = backend._binder.bind("backbone", states, rows=3, logit_rows=1)
        gpu = backend._gpu
        for breaks in (
            found._enqueue,
            lambda: gpu.allocate(8),
            gpu.synchronize,
            lambda: gpu.fetch(np.empty(1, np.uint8), states.addresses()["backbone.k_cache_0"]),
        ):
            with pytest.raises(AssertionError):
                gpu.capture(breaks)
            assert double.device.capturing is None
