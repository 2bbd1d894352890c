"""Requests refuse what they do not understand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from selfdraft.errors import ConfigError
from selfdraft.runtime.logit_params import LogitParams
from selfdraft.runtime.request import Request
from selfdraft.runtime.request_json import (
    REQUEST_OPTIONS,
    UNSUPPORTED,
    request_from_json,
    request_from_options,
    request_to_json,
)
from selfdraft.runtime.sampling import SamplingParams
from selfdraft.runtime.thinking import Thinking, ThinkTags


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


FULL = Request(
    prompt_ids=(3, 4),
    sampling=SamplingParams(
        temperature=0.5, top_k=3, top_p=0.9, min_p=0.1, seed=7, verification="rejection"
    ),
    logits=LogitParams(
        repetition_penalty=1.1,
        frequency_penalty=0.2,
        presence_penalty=-0.3,
        logit_bias={5: 1.5, 6: -2.0},
        banned_token_ids=(8,),
        allowed_token_ids=(1, 2),
        bad_words=("no",),
        no_repeat_ngram_size=3,
    ),
    max_tokens=9,
    min_tokens=2,
    stop=("a", "b"),
    include_stop_str_in_output=True,
    stop_token_ids=(4,),
    ignore_eos=True,
    logprobs=2,
    resumed_token_ids=(1,),
    task="code",
    thinking=Thinking(budget=4, tags=ThinkTags(start_ids=(5,), end_ids=(6, 7)), wrap_up_ids=(9,)),
)


@pytest.mark.parametrize("request_", [FULL, Request(prompt_ids=(1,))], ids=["full", "bare"])
def test_request_goes_through_json_and_back(request_: Request) -> None:
    data = json.loads(json.dumps(request_to_json(request_)))
    assert request_from_json(data) == request_
    assert set(data) - {"prompt_token_ids"} <= set(REQUEST_OPTIONS)


def test_json_of_a_request_holds_every_option_that_was_chosen() -> None:
    chosen = set(request_to_json(FULL)) - {"prompt_token_ids"}
    assert chosen == set(REQUEST_OPTIONS) - {"structured"}
    assert request_to_json(Request(prompt_ids=(1,))) == {"prompt_token_ids": [1]}


def test_stop_may_be_one_text_and_bias_keys_are_numbers_again() -> None:
    request = request_from_options([1], {"stop": "end", "logit_bias": {"7": 2}})
    assert request.stop == ("end",) and request.logits.logit_bias == {7: 2.0}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_options_of_other_servers_are_refused_with_what_to_do_instead(name: str) -> None:
    with pytest.raises(ConfigError, match=f"option '{name}' is not supported") as caught:
        request_from_options([1], {name: 1})
    assert caught.value.hint == UNSUPPORTED[name]
    assert name not in REQUEST_OPTIONS


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"max_tokens": "9"}, "request.max_tokens: expected int, found '9'"),
        ({"stop_token_ids": [1, True]}, r"request.stop_token_ids\[1\]: expected int"),
        ({"logit_bias": [1, 2]}, "logit_bias is"),
        ({"logit_bias": {"x": 1}}, "logit_bias is"),
        ({"logprobs": 21}, "logprobs is 21"),
        ({"stop": [""]}, "stop holds an empty text"),
        ({"temperature": 0.0, "verification": "match"}, "nothing to draw"),
        ({"temperature": 1.0, "verification": "greedy"}, "mode greedy has no temperature"),
        ({"verification": "gredy"}, "unknown mode 'gredy'.*'greedy'"),
        ({"max_tokens": 2, "resumed_token_ids": [1, 2]}, "2 tokens already, max_tokens is 2"),
        ({"allowed_token_ids": []}, "allowed_token_ids is empty"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_wrong_or_contradictory_values_are_refused_by_name(
    options: dict[str, Any], match: str
) -> None:
    with pytest.raises(ConfigError, match=match):
        request_from_options([1], options)


@pytest.mark.parametrize("data", [[], {"prompt_token_ids": "hi"}, {"prompt_token_ids": [1.5]}, {}])
def test_json_without_a_prompt_of_token_ids_is_refused(data: Any) -> None:
    with pytest.raises(ConfigError, match="no JSON object|prompt_token_ids is"):
        request_from_json(data)


def test_processors_of_the_caller_are_no_json() -> None:
    class Own:
        pass

    own: Any = Own()
    with pytest.raises(ConfigError, match="processors of its own"):
        request_to_json(Request(prompt_ids=(1,), processors=(own,)))
