"""What the contract of the attention op accepts, refuses and names."""

from __future__ import annotations

from typing import Any

import pytest
from support.attention_cases import make_op

from selfdraft.errors import ConfigError
from selfdraft.trt_plugins.cached_attention.contract import BUDGET_PARTS


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"num_heads": 5}, "num_heads is 5"),
        ({"head_dim": 0}, "head_dim is 0"),
        ({"scale": float("nan")}, "scale is nan"),
        ({"block": 32}, "block is 32"),
        ({"selector": "quest"}, "selector is 'quest'"),
        ({"sinks": -1}, "sinks is -1"),
        ({"local_blocks": 1}, "local_blocks is 1"),
        ({"local_blocks": 2, "selector": "infllm_v2"}, "at least 3 with selector infllm_v2"),
        ({"budget_tokens": -64}, "budget_tokens is -64"),
        ({"budget_share": 1.0}, "budget_share is 1.0"),
        ({"budget_share": float("nan")}, "budget_share is nan"),
        ({"spread": -0.5}, "spread is -0.5"),
        ({"spread": float("inf")}, "spread is inf"),
        ({"sliding_window": -1}, "sliding_window is -1"),
        ({"kv_dtype": "fp8"}, "kv_dtype is 'fp8'"),
        ({"selector": "infllm_v2", "sliding_window": 128}, "sliding_window 128 contradicts"),
    ],
)
def test_attributes_that_no_body_implements_are_refused_by_name(
    changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        make_op(**changes)


def test_a_budget_below_sinks_and_window_is_no_contradiction() -> None:
    assert make_op(selector="mean_std", budget_tokens=0, sinks=3, local_blocks=4)


@pytest.mark.parametrize(
    ("selector", "vectors"),
    [("all", 0), ("window", 0), ("mean_std", 2), ("min_max", 2), ("infllm_v2", 5)],
)
@pytest.mark.parametrize("kv_dtype", ["fp32", "fp16", "int8"])
def test_inputs_and_outputs_name_the_states_a_selector_and_kv_dtype_need(
    selector: str, vectors: int, kv_dtype: str
) -> None:
    op = make_op(selector=selector, kv_dtype=kv_dtype)
    states = ["k_cache", "v_cache"]
    states += ["k_scale", "v_scale"] if kv_dtype == "int8" else []
    states += ["summary"] if vectors else []
    assert op.summary_vectors == vectors
    assert list(op.inputs) == ["q", "k", "v", *states, "past_len", "row_count", "attend_all"]
    counter = [] if selector == "all" else ["blocks_read"]
    assert list(op.outputs) == ["y", *(f"{name}_out" for name in states), *counter]


def test_onnx_attributes_rebuild_the_op() -> None:
    op = make_op(selector="min_max", budget_share=0.25, spread=0.5, sliding_window=500)
    assert make_op(**op.onnx_attributes()) == op


def test_budget_share_survives_a_single_precision_attribute() -> None:
    import numpy as np

    for share in (0.05, 0.1, 0.3, 1 / 3, 0.75):
        as_attribute = float(np.float32(share))
        assert make_op(budget_share=as_attribute).budget_parts == round(share * BUDGET_PARTS)
