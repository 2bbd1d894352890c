from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from support.refusals import refused

from selfdraft.export.config import ConfigKeys
from selfdraft.export.families.llama import LLAMA
from selfdraft.export.families.rope import read_rope, rotated_dims

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def frequencies(config: dict[str, Any], head_dim: int = 64) -> np.ndarray:
    keys = ConfigKeys(config)
    rotated = rotated_dims(keys, LLAMA, head_dim=head_dim)
    rope = read_rope(keys, head_dim=head_dim, rotated=rotated, default_theta=10_000.0)
    assert rope.scale == 1.0
    return np.array(rope.inv_freq)


def test_plain_frequencies_fall_from_one_to_about_the_inverse_of_theta() -> None:
    found = frequencies({"rope_theta": 640_000.0})
    pairs = np.arange(32)
    np.testing.assert_allclose(found, np.exp(-pairs / 32 * math.log(640_000.0)), rtol=1e-13)
    assert found[0] == 1.0


def test_absent_and_null_keys_mean_the_default() -> None:
    np.testing.assert_array_equal(frequencies({}), frequencies({"rope_theta": 10_000.0}))
    np.testing.assert_array_equal(frequencies({"rope_scaling": None}), frequencies({}))
    np.testing.assert_array_equal(
        frequencies({"rope_scaling": {"rope_type": "default"}}), frequencies({})
    )


def test_linear_scaling_divides_every_frequency() -> None:
    for scaling in ({"type": "linear", "factor": 4.0}, {"rope_type": "linear", "factor": 4}):
        np.testing.assert_array_equal(frequencies({"rope_scaling": scaling}), frequencies({}) / 4)


def test_llama3_scaling_keeps_short_waves_divides_long_ones_and_blends_between() -> None:
    plain = frequencies({"rope_theta": 500_000.0}, 128)
    found = frequencies({"rope_theta": 500_000.0, "rope_scaling": LLAMA3}, 128)
    waves = 2 * math.pi / plain
    for value, before, wave in zip(found, plain, waves, strict=True):
        if wave < 8192 / 4:
            assert value == before
        elif wave > 8192 / 1:
            assert value == before / 8
        else:
            smooth = (8192 / wave - 1.0) / (4.0 - 1.0)
            assert value == pytest.approx((1 - smooth) * before / 8 + smooth * before, rel=1e-12)
    assert np.sum((waves >= 2048) & (waves <= 8192)) >= 3


def test_newer_config_style_gives_the_same_frequencies() -> None:
    older = {"rope_theta": 500_000.0, "rope_scaling": LLAMA3}
    newer = {"rope_parameters": {**LLAMA3, "rope_theta": 500_000.0}}
    np.testing.assert_array_equal(frequencies(older), frequencies(newer))
    plain = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
    np.testing.assert_array_equal(frequencies(plain), frequencies({"rope_theta": 1e6}))


def test_two_places_that_disagree_are_refused() -> None:
    with refused("rope_theta = 10000", "20000"):
        frequencies({"rope_theta": 1e4, "rope_parameters": {"rope_theta": 2e4}})
    with refused("'default'", "'llama3'"):
        frequencies({"rope_scaling": LLAMA3, "rope_parameters": {"rope_theta": 2e4}})


@pytest.mark.parametrize("key", sorted(set(LLAMA3) - {"rope_type"}))
@pytest.mark.parametrize("value", [None, 0, -1.0, "8"])
def test_scaling_without_a_usable_factor_is_refused_by_key(key: str, value: object) -> None:
    with refused(key):
        frequencies({"rope_scaling": {**LLAMA3, key: value}})


def test_factors_in_the_wrong_order_and_bad_sizes_are_refused() -> None:
    with refused("high_freq_factor 1"):
        frequencies({"rope_scaling": {**LLAMA3, "high_freq_factor": 1.0}})
    with refused("rope_theta = 0"):
        frequencies({"rope_theta": 0})
    with refused("head_dim 15"):
        frequencies({}, head_dim=15)
