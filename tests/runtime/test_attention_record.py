"""Counters and audits of decode steps, against what the backend itself was seen to do."""

from __future__ import annotations

import dataclasses
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from support import tiny_model
from support.sparse_bundle import sparse_layer

from selfdraft.errors import BundleError, ConfigError, DeviceError
from selfdraft.manifest import AttentionPlan, AttentionSpec, GraphSpec, Manifest, StateSpec
from selfdraft.runtime.attention_record import check_attention, sparse_layers
from selfdraft.runtime.backend import BackboneOutput, Step
from selfdraft.runtime.divergence import divergence
from selfdraft.runtime.generation import Generation
from selfdraft.runtime.loop import DecodeLoop
from selfdraft.runtime.request import Request
from selfdraft.runtime.result import GenerationResult
from selfdraft.runtime.sampling import SamplingParams

GREEDY = SamplingParams(temperature=0.0)
CONTEXT = 640


class Watched:
    """A backend whose decode steps are written down."""

    def __init__(self, inner: Any, *, counters: bool = True) -> None:
        self._inner = inner
        self._counters = counters
        self.steps: list[tuple[Step, int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def run_backbone(self, states: Any, step: Step, ids: Any) -> BackboneOutput:
        output = self._inner.run_backbone(states, step, ids)
        if not step.attend_all.any():
            copied = {f.name: getattr(step, f.name).copy() for f in dataclasses.fields(step)}
            read = 0 if output.blocks_read is None else int(output.blocks_read.sum())
            self.steps.append((Step(**copied), read))
        return output if self._counters else dataclasses.replace(output, blocks_read=None)


@pytest.fixture(scope="module")
def manifest() -> Manifest:
    """Sparse in its second layer."""
    plan = AttentionPlan(layers=(AttentionSpec(), sparse_layer()), mtp=AttentionSpec())
    made = tiny_model.manifest(tiny_model.model_spec(), context_length=CONTEXT, prefill_rows=256)
    return dataclasses.replace(made, attention=plan)


@pytest.fixture(scope="module")
def sparse(tiny: ModuleType, manifest: Manifest) -> Any:
    return tiny.make(manifest, *tiny.random_weights(manifest.model))


def _prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).integers(0, 64, length).tolist())


def _replies(
    backend: Any, prompts: list[tuple[int, ...]], **options: Any
) -> list[GenerationResult]:
    loop = DecodeLoop(backend, batch=len(prompts), context_length=CONTEXT, **options)
    requests = {
        slot: Request(prompt_ids=ids, sampling=GREEDY, max_tokens=9 + 3 * slot)
        for slot, ids in enumerate(prompts)
    }
    generation = Generation(loop, requests)
    for _ in generation:
        pass
    return [generation.results[slot] for slot in requests]


@pytest.mark.parametrize("drafts", [0, 2])
def test_counters_are_the_sum_of_what_the_steps_read(sparse: Any, drafts: int) -> None:
    watched = Watched(sparse)
    (result,) = _replies(watched, [_prompt(500)], drafts=drafts)
    found = result.attention
    assert found.mode == "sparse"
    assert found.steps == result.steps == len(watched.steps)
    assert found.rows == sum(int(step.row_count[0]) for step, _ in watched.steps)
    assert found.blocks_read == sum(read for _, read in watched.steps)
    ends = [int((step.past_len + step.row_count)[0]) for step, _ in watched.steps]
    assert found.blocks_in_use == sum(-(-end // 64) for end in ends)
    assert found.share is not None and found.share < 0.9


def test_budget_that_covers_the_context_reads_everything(sparse: Any) -> None:
    (result,) = _replies(sparse, [_prompt(100)], drafts=0)
    assert result.attention.share == 1.0


def test_dense_bundle_counts_nothing(tiny: ModuleType) -> None:
    (result,) = _replies(tiny.backend(context_length=CONTEXT), [_prompt(30)], drafts=0)
    assert result.attention.mode == "dense"
    assert result.attention.steps == result.attention.rows == result.steps > 0
    assert result.attention.share is None


def test_backend_without_counters_is_refused_for_a_sparse_bundle(sparse: Any) -> None:
    with pytest.raises(DeviceError, match="counted the blocks of 0 layers, the bundle has 1"):
        _replies(Watched(sparse, counters=False), [_prompt(20)], drafts=0)


@pytest.mark.parametrize("drafts", [0, 1, 3])
def test_audit_changes_no_token(sparse: Any, drafts: int) -> None:
    prompts = [_prompt(500, 1), _prompt(330, 2)]
    plain = _replies(sparse, prompts, drafts=drafts)
    audited = _replies(sparse, prompts, drafts=drafts, audit_every=1)
    for one, other in zip(plain, audited, strict=True):
        assert one.tokens == other.tokens
        assert one.accepted == other.accepted and one.attention == other.attention
        assert one.audit == () and len(other.audit) == other.steps


def test_audit_leaves_every_cache_as_it_was(sparse: Any) -> None:
    states = []
    for options in ({}, {"audit_every": 1}):
        loop = DecodeLoop(sparse, drafts=2, context_length=CONTEXT, **options)
        loop.begin({0: Request(prompt_ids=_prompt(500), sampling=GREEDY, max_tokens=9)})
        while loop.active:
            loop.step()
        states.append(loop.slot_cache(0).arrays)
    plain, audited = states
    for name in plain:
        np.testing.assert_array_equal(plain[name], audited[name], err_msg=name)


def test_audit_compares_every_nth_step_at_its_position(sparse: Any) -> None:
    prompt = _prompt(500)
    (result,) = _replies(sparse, [prompt], drafts=0, audit_every=3)
    assert [point.position for point in result.audit] == [500, 503, 506]
    (every,) = _replies(sparse, [prompt], drafts=0, audit_every=1)
    by_position = {point.position: point for point in every.audit}
    assert all(by_position[point.position] == point for point in result.audit)
    assert all(point.kl > 1e-6 for point in result.audit), "dense and sparse differ here"


def test_audit_finds_nothing_where_the_budget_covers_the_context(sparse: Any) -> None:
    (result,) = _replies(sparse, [_prompt(100)], drafts=0, audit_every=2)
    assert all(point.kl < 1e-9 and point.same_top for point in result.audit)


@pytest.mark.parametrize(
    ("every", "part"), [(0, "audit_every is 0"), (1, "every layer of this bundle is dense")]
)
def test_audit_that_means_nothing_is_refused(tiny: ModuleType, every: int, part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        DecodeLoop(tiny.backend(), audit_every=every)


def test_graph_without_the_planned_sparse_layers_is_refused(manifest: Manifest) -> None:
    graphs = {"backbone": _graph(outputs=())}
    with pytest.raises(BundleError, match="sparse in 0 layers, the manifest plans 1"):
        check_attention(dataclasses.replace(manifest, graphs=graphs))


def test_fp16_cache_is_refused_on_the_cpu(manifest: Manifest) -> None:
    fp16 = dataclasses.replace(manifest.precision, kv="fp16")
    with pytest.raises(BundleError, match="fp16, which no CPU engine runs"):
        check_attention(dataclasses.replace(manifest, precision=fp16))


def test_bundle_for_a_board_is_refused_on_the_cpu(manifest: Manifest) -> None:
    with pytest.raises(BundleError, match="for orin-jp6, whose kernels no CPU engine has"):
        check_attention(dataclasses.replace(manifest, target="orin-jp6"))


def test_plan_of_another_number_of_layers_is_no_manifest(manifest: Manifest) -> None:
    plan = AttentionPlan(layers=(AttentionSpec(),), mtp=None)
    with pytest.raises(ValueError, match="plans 1 layers, the model has 2"):
        dataclasses.replace(manifest, attention=plan)


def test_sparse_layers_are_those_with_a_selector(manifest: Manifest) -> None:
    assert sparse_layers(manifest) == (1,)
    assert sparse_layers(dataclasses.replace(manifest, attention=None)) == ()


def test_divergence_is_that_of_the_definition() -> None:
    dense, other = np.log([0.5, 0.25, 0.25]), np.log([0.25, 0.5, 0.25])
    found = divergence(dense + 3.0, other - 1e3)
    assert found.kl == pytest.approx(0.25 * np.log(2)) and not found.same_top
    assert divergence(dense, dense + 7).kl == pytest.approx(0.0, abs=1e-15)


def _graph(*, outputs: tuple[Any, ...]) -> Any:
    from selfdraft.manifest import GraphSpec

    return GraphSpec(file="backbone.onnx", inputs=(), outputs=outputs, taps=(), states=())


def test_audit_fails_where_the_dense_row_did_not_read_every_block(sparse: Any) -> None:
    class Deaf(Watched):
        """Ignores ``attend_all`` in steps of one row."""

        def run_backbone(self, states: Any, step: Step, ids: Any) -> BackboneOutput:
            if ids.shape[1] == 1:
                step.attend_all[:] = 0
            return super().run_backbone(states, step, ids)

    with pytest.raises(DeviceError, match="asked for all 8 blocks, the engine read 5"):
        _replies(Deaf(sparse), [_prompt(500)], drafts=0, audit_every=1)


def test_audit_over_states_that_do_not_forget_a_row_is_refused(sparse: Any) -> None:
    state = StateSpec(
        name="s", kind="recurrent", dtype="float32", shape=(2,), input="s", output="s", aliased=True
    )
    graph = GraphSpec(file="backbone.onnx", inputs=(), outputs=(), taps=(), states=(state,))
    backend: Any = Watched(sparse)
    backend.manifest = dataclasses.replace(sparse.manifest, graphs={"backbone": graph})
    with pytest.raises(ConfigError, match="states of kind recurrent do not forget"):
        DecodeLoop(backend, audit_every=1)
