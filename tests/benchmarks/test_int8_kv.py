"""int8 against fp32 caches: bounds of the figures in docs/benchmarks.md, by selector."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import int8_kv
from benchmarks.needles import draw_scene, make_op
from selfdraft.trt_plugins.cached_attention.contract import CachedAttention
from selfdraft.trt_plugins.cached_attention.states import empty_states

SMALL = replace(int8_kv.SCENE, length=2048, head_dim=64, topic_tokens=128)


def test_error_of_every_selector_stays_within_its_bound() -> None:
    errors = int8_kv.study(SMALL, budget_tokens=512, seeds=4)
    assert set(errors) == {"all", "window", "mean_std", "min_max", "infllm_v2"}
    for name, error in errors.items():
        assert 0 < error.relative <= error.relative_worst
        # A block that changes places may hold much attention: then it decides, not the codes.
        assert error.relative_same_blocks <= 0.05, (name, error)
        assert error.same_blocks >= 0.95, (name, error)
    for name in ("all", "window"):
        assert errors[name].same_blocks == 1.0 and errors[name].relative <= 0.05


def test_keys_and_values_that_codes_hold_exactly_have_no_error() -> None:
    """What the study measures is the rounding to int8, nothing beside it."""
    scene = draw_scene(SMALL, make_op(SMALL, budget_tokens=512), 0)
    on_grid = np.round(scene.keys)
    on_grid = np.clip(on_grid, -127, 127)
    on_grid[:, 0] = 127  # every scale is 1
    exact = replace(scene, keys=on_grid)
    op = replace(make_op(SMALL, budget_tokens=512), scale=1e-4)
    plain, blocks = int8_kv.decode(op, exact, on_grid)
    int8, int8_blocks = int8_kv.decode(replace(op, kv_dtype="int8"), exact, on_grid)
    np.testing.assert_array_equal(plain, int8)
    np.testing.assert_array_equal(blocks, int8_blocks)


@pytest.mark.parametrize("head_dim", [64, 96, 128, 256])
def test_int8_cache_takes_one_byte_a_value_and_two_a_token_and_head(head_dim: int) -> None:
    """Against fp16: (d + 2) / 2d, which is 51.6 % at d = 64 and 50.8 % at d = 128."""
    sizes = {}
    for kv_dtype in ("int8", "fp16"):
        op = CachedAttention(
            num_heads=4, num_kv_heads=2, head_dim=head_dim, scale=1.0, kv_dtype=kv_dtype
        )
        states = empty_states(op, batch=1, capacity=256)
        sizes[kv_dtype] = sum(array.nbytes for array in states.values())
    assert sizes["fp16"] == 2 * 2 * 256 * head_dim * 2
    assert sizes["int8"] * 2 * head_dim == sizes["fp16"] * (head_dim + 2)


def test_command_writes_the_figures_it_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "new" / "int8.json"
    options = ["--seeds", "1", "--length", "1024", "--budget-tokens", "384"]
    monkeypatch.setattr("sys.argv", ["int8_kv", *options, "--json", str(target)])
    int8_kv.main()
    record = json.loads(target.read_text(encoding="utf-8"))
    printed = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines()}
    for name, error in record["selectors"].items():
        assert float(printed[name][0]) == pytest.approx(error["relative"], abs=5e-5)
