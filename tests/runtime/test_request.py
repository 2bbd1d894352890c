"""Requests refuse what they do not understand."""

from __future__ import annotations

from typing import Any

import pytest

from selfdraft.errors import ConfigError
from selfdraft.runtime.request import Request
from selfdraft.runtime.request_json import REQUEST_OPTIONS, request_from_options


def test_options_reach_the_request() -> None:
    options = {"temperature": 0.5, "top_k": 3, "max_tokens": 9, "stop_token_ids": [4, 5], "seed": 1}
    request = request_from_options([1, 2], options)
    assert request.prompt_ids == (1, 2) and request.stop_token_ids == (4, 5)
    assert request.max_tokens == 9 and request.min_tokens == 0
    assert (request.sampling.temperature, request.sampling.top_k) == (0.5, 3)
    assert request.sampling.top_p is None


@pytest.mark.parametrize(
    ("option", "closest"), [("temprature", "temperature"), ("max_token", "max_tokens")]
)
def test_unknown_option_is_refused_with_the_closest_name(option: str, closest: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown option '{option}'.*'{closest}'") as caught:
        request_from_options([1], {option: 1})
    assert all(name in caught.value.hint for name in REQUEST_OPTIONS)


def test_unknown_option_without_a_close_name_is_refused_too() -> None:
    with pytest.raises(ConfigError, match="unknown option 'zzz'$"):
        request_from_options([1], {"zzz": None})


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"prompt_ids": ()}, "prompt is empty"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"max_tokens": 1.5}, "max_tokens is 1.5"),
        ({"min_tokens": -1}, "min_tokens is -1"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens 5 is above max_tokens 4"),
    ],
)
def test_values_out_of_range_are_refused(values: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        Request(**{"prompt_ids": (1,)} | values)
