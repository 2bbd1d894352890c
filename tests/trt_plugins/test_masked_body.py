"""The function bodies of Orin's check variant against the NumPy oracles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.kernel_cases import Case, case_name, covering_array, step_of
from support.kernel_step import KernelStep
from support.masked_op import OPSET, one_node_model, run_masked_body, run_model

from selfdraft.trt_plugins.cached_attention import oracle
from selfdraft.trt_plugins.int4_matmul.contract import Int4MatMul
from selfdraft.trt_plugins.int4_matmul.onnx_body import function_text
from selfdraft.trt_plugins.int4_matmul.oracle import int4_matmul
from selfdraft.trt_plugins.int4_matmul.packing import pack_codes, pack_scales

CASES = covering_array(size=200, seed=1)
ERROR = 2e-3
"""Of the largest |V|: y is rounded to fp16 (2^-11), and scores at the cut may choose otherwise."""


def cpu_layout(states: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Caches and scales ``[B, Hkv, S, ...]`` from ``[B, N, Hkv, 64, ...]``; summaries as they are."""
    found = {}
    for name, array in states.items():
        if name == "summary":
            found[name] = array.copy()
        else:
            heads = np.moveaxis(array, 2, 1)
            found[name] = heads.reshape(*heads.shape[:2], -1, *heads.shape[4:]).copy()
    return found


def check_body(step: KernelStep) -> None:
    """y, caches, counter and complete summaries are those of the oracle."""
    y, states, counter = run_masked_body(step)
    batch, rows = step.q.shape[:2]
    expected = cpu_layout({n: np.nan_to_num(a) for n, a in step.states.items()})
    result = oracle.cached_attention(
        step.op,
        *(getattr(step, name).reshape(batch, rows, -1) for name in "qkv"),
        **expected,
        past_len=step.past_len,
        row_count=step.row_count,
        attend_all=step.attend_all,
    )
    found = cpu_layout(states)
    for slot, count in enumerate(step.row_count.tolist()):
        length = int(step.past_len[slot]) + count
        for name in expected.keys() - {"summary"}:
            np.testing.assert_array_equal(
                found[name][slot, :, :length], expected[name][slot, :, :length], err_msg=name
            )
        if "summary" in expected:
            complete = max(length // step.op.block - 2, 0)
            np.testing.assert_allclose(
                found["summary"][slot, :, :complete],
                expected["summary"][slot, :, :complete],
                rtol=2e-3,
                atol=2e-3,
            )
        values = np.abs(expected["v_cache"][slot, :, :length].astype(np.float64))
        if "v_scale" in expected:
            values *= expected["v_scale"][slot, :, :length, None]
        own = np.asarray(result.y).reshape(step.q.shape)[slot, :count]
        error = np.abs(y[slot, :count] - own).max(initial=0)
        assert error <= ERROR * values.max(initial=1), f"slot {slot}: off by {error:.3g}"
    assert np.isfinite(y).all()
    assert counter == result.blocks_read


@pytest.mark.parametrize("case", CASES[::10], ids=case_name)
def test_a_step_of_the_masked_body_is_that_of_the_oracle(case: Case) -> None:
    check_body(step_of(case, seed=CASES.index(case)))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_a_step_of_the_masked_body_is_that_of_the_oracle_on_the_grid(part: int) -> None:
    for case in CASES[part::20]:
        check_body(step_of(case, seed=CASES.index(case)))


@pytest.mark.parametrize(
    ("inputs", "outputs", "group"), [(192, 130, 32), (128, 64, 64), (384, 200, 128), (320, 1, 64)]
)
def test_the_body_of_int4_matmul_unpacks_the_bytes_that_the_kernels_read(
    inputs: int, outputs: int, group: int
) -> None:
    op = Int4MatMul(in_features=inputs, out_features=outputs, group_size=group)
    rng = np.random.default_rng(inputs + outputs)
    codes = rng.integers(-8, 8, (inputs, outputs), dtype=np.int8)
    scales = rng.uniform(0.01, 0.1, (inputs // group, outputs))
    feed = {
        "x": rng.normal(size=(2, 3, inputs)).astype(np.float16),
        "weight": pack_codes(codes, op),
        "scale": pack_scales(scales, op),
    }
    text = function_text(op, name="Op", opset=OPSET)
    (y,) = run_model(one_node_model(text, feed, {"y": (np.float16, 3)}), feed)
    expected = int4_matmul(feed["x"], feed["weight"], feed["scale"], op=op)
    # One rounding of y to fp16; fp32 sums of at most 384 products.
    np.testing.assert_allclose(y, expected, rtol=2.0**-10, atol=1e-3)
