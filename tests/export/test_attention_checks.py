"""Attention options that would do something else than they say are refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from support import tiny_model

from selfdraft.errors import ConfigError
from selfdraft.export.attention_options import AttentionOptions
from selfdraft.manifest import AttentionPlan, AttentionSpec
from selfdraft.trt_plugins.cached_attention.contract import DEFAULT_SPREAD
from selfdraft.trt_plugins.cached_attention.from_manifest import layer_ops

DENSE_WITH = [
    ("selector", "min_max"),
    ("spread", 2.0),
    ("budget_tokens", 512),
    ("budget_share", 0.5),
    ("sinks", 2),
    ("local_blocks", 2),
    ("first_layers", 1),
    ("mtp_window", 64),
]


@pytest.mark.parametrize(("name", "value"), DENSE_WITH)
def test_sparse_options_of_a_dense_export_are_refused(name: str, value: Any) -> None:
    options: dict[str, Any] = {name: value}
    with pytest.raises(ConfigError, match=f"{name} .* has no meaning with dense attention"):
        AttentionOptions(**options)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"budget_tokens": 576}, "leaves selector 'mean_std' nothing to choose"),
        ({"budget_tokens": 192, "local_blocks": 2, "selector": "min_max"}, "1 sink and 2 local"),
        ({"first_layers": 1, "first_budget_tokens": 100}, "first_budget_tokens 100 leaves"),
        ({"selector": "infllm_v2", "spread": 2.0}, "spread 2.0 has no meaning"),
        ({"selector": "window", "spread": 0.0}, "spread 0.0 has no meaning"),
        ({"selector": "window", "budget_tokens": 512}, "budget_tokens 512 has no meaning"),
        ({"selector": "window", "budget_share": 0.1}, "budget_share 0.1 has no meaning"),
    ],
)
def test_budget_that_cannot_be_spent_is_refused(options: dict[str, Any], part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        AttentionOptions(kind="sparse", **options)
    assert part in caught.value.problem


@pytest.mark.parametrize(
    "options",
    [
        {"budget_tokens": 640},
        {"budget_tokens": 512, "local_blocks": 2},
        {"budget_tokens": 128, "budget_share": 0.1},
        {"selector": "window"},
        {"first_layers": 1},
    ],
)
def test_budget_that_can_be_spent_is_planned(options: dict[str, Any]) -> None:
    plan = AttentionOptions(kind="sparse", **options).plan(tiny_model.model_spec())
    assert plan is not None and any(layer.selector != "all" for layer in plan.layers)


@pytest.mark.parametrize(
    ("options", "spread"),
    [
        ({}, DEFAULT_SPREAD["mean_std"]),
        ({"selector": "min_max"}, 1.0),
        ({"spread": 0.5}, 0.5),
        ({"selector": "min_max", "spread": 0.0}, 0.0),
    ],
)
def test_spread_is_the_one_given_or_the_selectors_own(
    options: dict[str, Any], spread: float
) -> None:
    plan = AttentionOptions(kind="sparse", **options).plan(tiny_model.model_spec())
    assert plan is not None and {layer.spread for layer in plan.layers} == {spread}


@pytest.mark.parametrize("spread", [-1.0, float("nan"), float("inf")])
def test_spread_that_orders_nothing_is_refused(spread: float) -> None:
    options = AttentionOptions(kind="sparse", spread=spread)
    with pytest.raises(ConfigError, match="spread is"):
        options.plan(tiny_model.model_spec())


def test_plan_that_is_dense_in_every_layer_is_refused() -> None:
    options = AttentionOptions(kind="sparse", first_layers=2)
    with pytest.raises(ConfigError, match="makes all 2 layers dense"):
        options.plan(tiny_model.model_spec())


def test_window_of_a_head_that_is_not_there_is_refused() -> None:
    options = AttentionOptions(kind="sparse", mtp_window=128)
    with pytest.raises(ConfigError, match="mtp_window 128 .* no MTP head"):
        options.plan(tiny_model.model_spec(mtp=None))


@pytest.mark.parametrize("local_blocks", [1, 2])
def test_infllm_windows_must_be_complete(local_blocks: int) -> None:
    options = AttentionOptions(kind="sparse", selector="infllm_v2", local_blocks=local_blocks)
    with pytest.raises(ConfigError, match="at least 3 with selector infllm_v2"):
        options.plan(tiny_model.model_spec())


def test_infllm_with_a_sliding_window_is_refused_by_name() -> None:
    layer = AttentionSpec(selector="infllm_v2", local_blocks=3, sliding_window=512)
    plan = AttentionPlan(layers=(layer, layer), mtp=None)
    with pytest.raises(ConfigError, match="sliding_window 512 contradicts selector infllm_v2"):
        layer_ops(tiny_model.model_spec(), plan)
