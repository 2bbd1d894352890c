"""Structured output parses, and is the same with any number of drafts."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest
from support.checkpoints import write_tokenizer
from support.scripted_backend import Script, ScriptedBackend

from selfdraft.errors import ConfigError
from selfdraft.runtime.generation import Generation
from selfdraft.runtime.grammar import StructuredOutput, grammar_mask
from selfdraft.runtime.loop import DecodeLoop
from selfdraft.runtime.request import Request
from selfdraft.runtime.result import GenerationResult
from selfdraft.runtime.sampling import SamplingParams
from selfdraft.runtime.thinking import Thinking
from selfdraft.runtime.thinking_text import think_tags
from selfdraft.runtime.tokenizer import Tokenizer

pytest.importorskip("llguidance", reason="grammars: pip install 'selfdraft[grammar]'")

VOCAB, EOS = 288, 258
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 999},
        "tags": {"type": "array", "items": {"enum": ["a", "bc"]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
JSON = StructuredOutput(kind="json_schema", source=json.dumps(SCHEMA))
REGEX = StructuredOutput(kind="regex", source=r"(ab|cd)+;[0-9]{2}")
LARK = StructuredOutput(
    kind="lark", source='start: sum\nsum: NUMBER ("+" NUMBER)*\nNUMBER: /[1-9][0-9]?/\n'
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A token for each byte, and think tags."""
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return Tokenizer.from_file(folder / "tokenizer.json")


def writes(tokenizer: Tokenizer, prompt: Sequence[int], text: str) -> Script:
    """Wants to write ``text`` again and again; what it is kept from is left out."""
    wanted = tokenizer.encode(text, add_special_tokens=False)

    def script(history: tuple[int, ...]) -> int:
        place = 0
        for token in history[len(prompt) :]:
            place += token == wanted[place % len(wanted)]
        return wanted[place % len(wanted)]

    return script


def reply(
    backend: Any, request: Request, tokenizer: Tokenizer, *, drafts: int, batch: int = 1
) -> list[GenerationResult]:
    loop = DecodeLoop(backend, batch=batch, drafts=drafts, tokenizer=tokenizer)
    generation = Generation(loop, dict.fromkeys(range(batch), request))
    list(generation)
    return [generation.results[slot] for slot in range(batch)]


def matches(output: StructuredOutput, text: str) -> bool:
    if output is REGEX:
        return re.fullmatch(output.source, text) is not None
    if output is LARK:
        return all(1 <= int(part) <= 99 for part in text.split("+"))
    value = json.loads(text)
    return (
        list(value) == ["name", "age", "tags"]
        and len(value["name"]) <= 6
        and 0 <= value["age"] <= 999
        and set(value["tags"]) <= {"a", "bc"}
    )


@pytest.mark.parametrize(
    ("output", "text"),
    [
        (JSON, '{"name": "Ada", "age": 36, "tags": ["a", "bc"]}'),
        (JSON, "Sure! Here is the object: {}"),
        (REGEX, "abcdxab;42 and more"),
        (LARK, "12+7+034++x"),
    ],
    ids=["json, willing", "json, unwilling", "regex", "grammar"],
)
@pytest.mark.parametrize(
    "sampling",
    [SamplingParams(), SamplingParams(temperature=1.0, seed=4)],
    ids=["greedy", "match"],
)
def test_output_parses_and_drafts_change_nothing(
    tiny: ModuleType,
    tokenizer: Tokenizer,
    output: StructuredOutput,
    text: str,
    sampling: SamplingParams,
) -> None:
    prompt = (65, 66)
    backend = ScriptedBackend(
        tiny,
        writes(tokenizer, prompt, text),
        vocab_size=VOCAB,
        eos_ids=(EOS,),
        candidates=16,
        margin=4.0,
    )
    request = Request(prompt_ids=prompt, sampling=sampling, structured=output, max_tokens=200)
    ((plain,), *others) = (
        reply(backend, request, tokenizer, drafts=drafts, batch=batch)
        for drafts, batch in ((0, 1), (1, 1), (4, 1), (2, 3))
    )
    assert plain.finish_reason == "eos"
    assert matches(output, tokenizer.decode(plain.tokens)), tokenizer.decode(plain.tokens)
    for results in others:
        assert [result.tokens for result in results] == [plain.tokens] * len(results)
        assert {result.finish_reason for result in results} == {"eos"}


def test_resumed_reply_goes_on_in_the_grammar(tiny: ModuleType, tokenizer: Tokenizer) -> None:
    backend = ScriptedBackend(
        tiny, writes(tokenizer, (65,), "abxabx"), vocab_size=VOCAB, eos_ids=(EOS,)
    )
    request = Request(prompt_ids=(65,), structured=StructuredOutput(kind="regex", source="abab"))
    (whole,) = reply(backend, request, tokenizer, drafts=0)
    assert tokenizer.decode(whole.tokens) == "abab"
    for count, drafts in itertools.product(range(1, 5), (0, 3)):
        resumed = dataclasses.replace(request, resumed_token_ids=whole.tokens[:count])
        (rest,) = reply(backend, resumed, tokenizer, drafts=drafts)
        assert rest.tokens == whole.tokens[count:]


def test_whitespace_of_json_has_an_end(tiny: ModuleType, tokenizer: Tokenizer) -> None:
    backend = ScriptedBackend(
        tiny, writes(tokenizer, (65,), "\n"), vocab_size=VOCAB, eos_ids=(EOS,)
    )
    output = StructuredOutput(kind="json_schema", source='{"const": {"a": 1}}')
    request = Request(prompt_ids=(65,), structured=output, max_tokens=100)
    (result,) = reply(backend, request, tokenizer, drafts=0)
    assert json.loads(tokenizer.decode(result.tokens)) == {"a": 1}
    assert result.finish_reason == "eos"


def test_grammar_ends_at_every_index_of_a_draft_chain(
    tiny: ModuleType, tokenizer: Tokenizer
) -> None:
    for length, drafts in itertools.product(range(1, 8), range(5)):
        prompt = (65,)
        backend = ScriptedBackend(
            tiny, writes(tokenizer, prompt, "x"), vocab_size=VOCAB, eos_ids=(EOS,)
        )
        output = StructuredOutput(kind="regex", source=f"x{{{length}}}")
        request = Request(prompt_ids=prompt, structured=output)
        (result,) = reply(backend, request, tokenizer, drafts=drafts)
        assert tokenizer.decode(result.tokens) == "x" * length
        assert (result.tokens[-1], result.finish_reason) == (EOS, "eos")


@pytest.mark.parametrize("opened", [True, False], ids=["opened in the prompt", "opened later"])
def test_grammar_begins_where_the_thinking_ends(
    tiny: ModuleType, tokenizer: Tokenizer, opened: bool
) -> None:
    tags = think_tags(tokenizer)
    prompt = (65, *tags.start_ids) if opened else (65,)
    thought = ("" if opened else "<think>") + "hm so{</think>xxx"
    backend = ScriptedBackend(
        tiny, writes(tokenizer, prompt, thought), vocab_size=VOCAB, eos_ids=(EOS,)
    )
    output = StructuredOutput(kind="regex", source="xxx")
    wrap_up = tuple(tokenizer.encode("B", add_special_tokens=False))
    for budget, drafts in itertools.product((1, 2, 3, 4, 5, 6, 7, 40), range(5)):
        thinking = Thinking(budget=budget, tags=tags, wrap_up_ids=wrap_up)
        request = Request(prompt_ids=prompt, thinking=thinking, structured=output)
        (result,) = reply(backend, request, tokenizer, drafts=drafts)
        kept = "hm so{"[:budget] + ("B" if budget <= 6 else "")
        start = "" if opened else "<think>"
        assert tokenizer.decode(result.tokens) == f"{start}{kept}</think>xxx"
        assert result.thinking is not None and not result.thinking.violated


def test_open_thinking_is_left_alone_without_a_budget_too(
    tiny: ModuleType, tokenizer: Tokenizer
) -> None:
    prompt = (65, *think_tags(tokenizer).start_ids)
    script = writes(tokenizer, prompt, "ab</think>x")
    backend = ScriptedBackend(tiny, script, vocab_size=VOCAB, eos_ids=(EOS,))
    output = StructuredOutput(kind="regex", source="x")
    for drafts in range(4):
        request = Request(prompt_ids=prompt, structured=output)
        (result,) = reply(backend, request, tokenizer, drafts=drafts)
        assert tokenizer.decode(result.tokens) == "ab</think>x"


@pytest.mark.parametrize("case", ["no budget", "budget 0", "closed pair"])
def test_no_thinking_comes_first_unless_it_may(
    tiny: ModuleType, tokenizer: Tokenizer, case: str
) -> None:
    tags = think_tags(tokenizer)
    pair = tokenizer.encode("<think>\n\n</think>\n\n", add_special_tokens=False)
    prompt = (65, *pair) if case == "closed pair" else (65,)
    script = writes(tokenizer, prompt, "<think>ab</think>x")
    backend = ScriptedBackend(tiny, script, vocab_size=VOCAB, eos_ids=(EOS,))
    thinking = None
    if case != "no budget":
        thinking = Thinking(budget=0 if case == "budget 0" else 9, tags=tags)
    output = StructuredOutput(kind="regex", source="x")
    request = Request(prompt_ids=prompt, structured=output, thinking=thinking)
    (result,) = reply(backend, request, tokenizer, drafts=2)
    assert tokenizer.decode(result.tokens) == "x"


def test_clone_goes_its_own_way(tokenizer: Tokenizer) -> None:
    a, b = tokenizer.encode("ab", add_special_tokens=False)
    output = StructuredOutput(kind="regex", source="a+b")
    mask = grammar_mask(output, tokenizer, vocab_size=VOCAB, eos_ids=(EOS,))
    twin = mask.clone()
    twin.advance(a)
    assert (list(mask.wanted_ids), list(twin.wanted_ids)) == ([a], [a, b])


def test_each_slot_has_a_grammar_of_its_own(tiny: ModuleType, tokenizer: Tokenizer) -> None:
    script = writes(tokenizer, (65,), "abc")
    backend = ScriptedBackend(tiny, script, vocab_size=VOCAB, eos_ids=(EOS,))
    loop = DecodeLoop(backend, batch=3, drafts=3, tokenizer=tokenizer)
    output = [StructuredOutput(kind="regex", source=source) for source in ("a+b", "b{4}", "cab")]
    requests = {
        slot: Request(prompt_ids=(65,), structured=output[slot], max_tokens=8) for slot in range(3)
    }
    generation = Generation(loop, requests)
    list(generation)
    texts = [tokenizer.decode(generation.results[slot].tokens) for slot in range(3)]
    assert texts == ["ab", "bbbb", "cab"]


@pytest.mark.parametrize(
    ("output", "match"),
    [
        (StructuredOutput(kind="json_schema", source="{nope"), "JSON schema cannot be used"),
        (StructuredOutput(kind="json_schema", source='{"type": "nope"}'), "Invalid type"),
        (StructuredOutput(kind="regex", source="a("), "regular expression .* unclosed group"),
        (StructuredOutput(kind="lark", source="start: foo"), 'grammar .* unknown name: "foo"'),
    ],
)
def test_unreadable_grammars_are_refused_on_one_line(
    tiny: ModuleType, tokenizer: Tokenizer, output: StructuredOutput, match: str
) -> None:
    backend = ScriptedBackend(tiny, lambda _: 1, vocab_size=VOCAB, eos_ids=(EOS,))
    with pytest.raises(ConfigError, match=match) as caught:
        reply(backend, Request(prompt_ids=(65,), structured=output), tokenizer, drafts=0)
    assert "\n" not in caught.value.problem


def test_what_a_grammar_needs_is_named(
    tiny: ModuleType, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = ScriptedBackend(tiny, lambda _: 1, vocab_size=VOCAB, eos_ids=(EOS,))
    request = Request(prompt_ids=(65,), structured=REGEX)
    with pytest.raises(ConfigError, match="no tokenizer"):
        DecodeLoop(backend).begin({0: request})
    endless = Request(prompt_ids=(65,), structured=REGEX, ignore_eos=True)
    with pytest.raises(ConfigError, match="needs an end token"):
        reply(backend, endless, tokenizer, drafts=0)
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(ConfigError, match="llguidance, which is not installed"):
        reply(backend, request, tokenizer, drafts=0)
