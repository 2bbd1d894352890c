"""The server and ``selfdraft generate`` give the same tokens to the same options."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

pytest.importorskip("uvicorn", reason="pip install 'selfdraft[serve]'")

from support.http_server import serving

CASES: list[tuple[list[Any], dict[str, Any]]] = [
    ([], {}),
    (["--stop", "w☃", "--stop", "é-"], {"stop": ["w☃", "é-"]}),
    (["--stop", "é", "--keep-stop"], {"stop": "é", "include_stop_str_in_output": True}),
    (["--system", "Be brief.", "--max-tokens", 4], {"max_tokens": 4}),
    (
        ["--temperature", 2, "--seed", 11, "--top-k", 9, "--min-p", 0.01, "--max-tokens", 30],
        {"temperature": 2, "seed": 11, "top_k": 9, "min_p": 0.01, "max_tokens": 30},
    ),
    (
        ["--logit-bias", "33=30", "--frequency-penalty", 1.5, "--max-tokens", 9],
        {"logit_bias": {"33": 30}, "frequency_penalty": 1.5, "max_tokens": 9},
    ),
    (["--drafts", 0, "--ban-token", 45], {"banned_token_ids": [45], "max_tokens": 250}),
]


@pytest.fixture(scope="module")
def url(shared_bundle: Path) -> Iterator[str]:
    with serving(shared_bundle) as opened:
        yield opened.url


@pytest.mark.parametrize(("options", "fields"), CASES)
def test_tokens_are_those_of_generate(
    run: Any, shared_bundle: Path, url: str, options: list[Any], fields: dict[str, Any]
) -> None:
    done = run("generate", shared_bundle, "recite", "--json", *options)
    assert done.exit_code == 0, done.stderr
    expected = json.loads(done.stdout)
    messages = [{"role": "user", "content": "recite"}]
    if "--system" in options:
        messages.insert(0, {"role": "system", "content": "Be brief."})
    body = {"messages": messages, "return_record": True, **fields}
    asked = Request(
        f"{url}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urlopen(asked, timeout=30) as response:
        reply = json.load(response)
    record = reply["selfdraft"]
    for name in (
        "prompt_token_ids",
        "tokens",
        "text",
        "finish_reason",
        "stop_reason",
        "verification",
    ):
        assert record[name] == expected[name], name
    assert reply["choices"][0]["message"]["content"] == expected["answer"]
