"""What the MTP head adds on a device: small beside the backbone, and the LM head held once."""

from __future__ import annotations

import dataclasses
import math

import pytest

pytest.importorskip("torch", reason="the exporter: pip install 'selfdraft[export]'")
import numpy as np
from support import tiny_model
from support.trt_double.install import installed, make_double

from selfdraft.cli.mtp_cost import MtpCost, mtp_cost
from selfdraft.export.graph import graph_ops, graph_spec
from selfdraft.export.targets import ORIN_DRAFT_VOCAB, TARGETS
from selfdraft.jetson.planner.geometry import geometry_from_spec
from selfdraft.jetson.planner.storage import Storage, weight_bytes
from selfdraft.manifest import Manifest, ModelSpec, MtpSpec, RopeSpec, capacity_for
from selfdraft.runtime.trt.allocation import plan_allocation
from selfdraft.runtime.trt.gpu import Gpu
from selfdraft.runtime.trt.limits import engine_limits
from selfdraft.runtime.trt.states import allocate_states


def mimo_7b(draft_vocab: int | None) -> ModelSpec:
    """The published geometry of MiMo-7B."""
    return ModelSpec(
        family="mimo",
        vocab_size=151_680,
        hidden_size=4096,
        num_layers=36,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        intermediate_size=11_008,
        rms_norm_eps=1e-5,
        qkv_bias=True,
        qk_norm=False,
        tied_head=False,
        rope=RopeSpec(inv_freq=(1.0,) * 64),
        mtp=MtpSpec(concat="hidden_first", tap="pre_norm", draft_vocab_size=draft_vocab),
    )


def on_board(spec: ModelSpec, *, context: int = 32_768) -> Manifest:
    """Its manifest for an Orin, graphs described and not traced."""
    engine = TARGETS["orin-jp6"]
    graphs = {
        name: graph_spec(
            name,
            spec,
            graph_ops(name, spec, None, kv_dtype="fp16"),
            candidates=64,
            engine=engine,
        )
        for name in ("backbone", "mtp")
    }
    manifest = tiny_model.manifest(spec, context_length=context, candidates=64, prefill_rows=256)
    return dataclasses.replace(manifest, target="orin-jp6", graphs=graphs)


def parts_of(spec: ModelSpec, head: str) -> dict[str, int]:
    storage = Storage(layers="int4", head=head, vectors="fp16", block=128)  # type: ignore[arg-type]
    return weight_bytes(geometry_from_spec(spec, name="MiMo-7B"), storage)


def cost_of(*, head: str = "int4", draft_vocab: int | None = ORIN_DRAFT_VOCAB) -> MtpCost:
    spec = mimo_7b(draft_vocab)
    return mtp_cost(on_board(spec), parts_of(spec, head), context=4096)


@pytest.mark.parametrize("head", ["int4", "fp16"])
def test_mimo_7b_in_int4_pays_four_percent_at_most(head: str) -> None:
    cost = cost_of(head=head)
    assert cost.share is not None
    print(cost.text)
    assert 0.02 < cost.share <= 0.04
    assert cost.lm_head_once and "twice" not in cost.text
    assert cost.draft_head < parts_of(mimo_7b(ORIN_DRAFT_VOCAB), head)["lm_head"] / 10
    assert all((cost.weights, cost.draft_head, cost.states, cost.buffers))
    assert cost.weights > 20 * cost.buffers


def test_head_that_drafts_over_all_tokens_holds_the_lm_head_twice() -> None:
    cost = cost_of(draft_vocab=None)
    assert cost.share is not None and cost.share > 0.08
    assert not cost.lm_head_once and "held twice (export: --draft-vocab)" in cost.text


def test_planned_states_are_those_that_the_backend_allocates() -> None:
    spec = tiny_model.model_spec(mtp=MtpSpec(concat="hidden_first", tap="pre_norm"))
    manifest = on_board(spec, context=300)
    limits = engine_limits(manifest.limits, batch=2)
    plan = plan_allocation(manifest, limits, drafts=2)
    with installed(make_double()):
        states = allocate_states(Gpu(), manifest, batch=2, capacity=limits.capacity)
        assert states.num_bytes == sum(part.states for part in plan.values())
    cache = 2 * capacity_for(300) * spec.num_kv_heads * spec.head_dim * np.dtype("float16").itemsize
    assert plan["mtp"].states >= 2 * cache
    assert plan["mtp"].buffers > 2 * math.prod((2, 256, spec.hidden_size)) * 2
