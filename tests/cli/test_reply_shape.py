"""Thinking budgets, structured output and beams on the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support.reciting_bundle import REPLY, write_reciting_bundle

from selfdraft.runtime.tokenizer import Tokenizer

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}"
    "{% if thinking_budget is defined %}({{ thinking_budget }}){% endif %}"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>"
    "{% elif enable_thinking %}<think>{% endif %}x"
)


@pytest.fixture(scope="session")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle whose template knows thinking budgets; it recites yzxyzx… to every message."""
    folder = tmp_path_factory.mktemp("bundles") / "thinker"
    return write_reciting_bundle(folder, template=TEMPLATE)


def record(result: Any) -> dict[str, Any]:
    assert result.exit_code == 0, result.stderr
    loaded: dict[str, Any] = json.loads(result.stdout)
    return loaded


def prompt_of(bundle: Path, found: dict[str, Any]) -> str:
    tokenizer = Tokenizer.from_file(bundle / "tokenizer.json")
    return tokenizer.decode(found["prompt_token_ids"], skip_special=False)


@pytest.mark.parametrize("drafts", [0, 1, 3])
def test_thinking_is_cut_at_its_budget_and_recorded(run: Any, thinker: Path, drafts: int) -> None:
    options = ("--thinking-budget", 4, "--wrap-up", "!?", "--max-tokens", 7, "--drafts", drafts)
    found = record(run("generate", thinker, "hi", *options, "--json"))
    assert prompt_of(thinker, found) == "[user:hi](4)<think>x"
    assert found["text"] == "yzxy!?</think>"
    assert found["thinking"] == {
        "budget": 4,
        "temperature": 0.0,
        "thinking_tokens": 4,
        "forced_tokens": 3,
        "completing_tokens": 0,
        "triggered": True,
        "violated": False,
        "closed": True,
    }
    assert (found["thought"], found["answer"]) == ("yzxy!?", "")
    shown = run("generate", thinker, "hi", *options)
    assert "thought 4 of 4 tokens, cut" in shown.stderr


@pytest.mark.parametrize("shape", [(), ("--no-stream",), ("--every", 2)], ids=str)
def test_stdout_holds_the_answer_and_stderr_the_thoughts(
    run: Any, thinker: Path, shape: tuple[object, ...]
) -> None:
    options = ("--thinking-budget", 2, "--max-tokens", 5, *shape)
    result = run("generate", thinker, "hi", *options)
    assert result.stdout == "</think></think>\n"
    assert result.stderr.splitlines()[0] == "yz"
    assert "the reply ended" not in result.stderr


def test_reply_that_ends_in_its_thoughts_says_why_there_is_no_answer(
    run: Any, thinker: Path
) -> None:
    result = run("generate", thinker, "<think>x", "--raw", "--max-tokens", 4)
    assert (result.exit_code, result.stdout) == (0, "")
    assert "the reply ended (length) while it was thinking" in result.stderr
    assert "--thinking-budget" in result.stderr


def test_reply_without_thoughts_is_all_answer(run: Any, shared_bundle: Path) -> None:
    found = record(run("generate", shared_bundle, "hi", "--json"))
    assert found["thought"] is None and found["answer"] == found["text"] == REPLY


def test_template_gets_the_answer_of_the_last_turn_and_its_thoughts_apart(
    run: Any, tmp_path: Path
) -> None:
    template = (
        "{% for m in messages %}[{{ m.role }}:{{ m.content }}|{{ m.reasoning_content }}]"
        "{% endfor %}{% if enable_thinking %}<think>{% endif %}x"
    )
    bundle = write_reciting_bundle(tmp_path / "b", template=template)
    options = ("--thinking-budget", 2, "--max-tokens", 4, "--json")
    result = run("chat", bundle, *options, input="hi\nho\n")
    second = json.loads(result.stdout.splitlines()[1])
    assert "[assistant:</think>|yz][user:ho|]<think>x" in prompt_of(bundle, second)


def test_budget_0_keeps_the_empty_pair(run: Any, thinker: Path) -> None:
    options = ("--thinking-budget", 0, "--max-tokens", 3, "--json")
    found = record(run("generate", thinker, "hi", *options))
    assert prompt_of(thinker, found) == "[user:hi](0)<think></think>x"
    assert found["text"] == "yzx" and not found["thinking"]["triggered"]
    opened = record(run("generate", thinker, "<think>x", "--raw", *options))
    assert opened["text"].startswith("</think>") and opened["thinking"]["thinking_tokens"] == 0


def test_users_template_argument_wins_over_the_budget(run: Any, thinker: Path) -> None:
    options = ("--thinking-budget", 4, "--template-arg", "thinking_budget=99", "--max-tokens", 1)
    found = record(run("generate", thinker, "hi", *options, "--json"))
    assert prompt_of(thinker, found) == "[user:hi](99)<think>x"


def test_template_that_knows_no_budget_is_told_nothing(run: Any, shared_bundle: Path) -> None:
    with_budget = record(run("generate", shared_bundle, "hi", "--thinking-budget", 9, "--json"))
    assert with_budget["text"] == REPLY
    assert "(9)" not in prompt_of(shared_bundle, with_budget)


@pytest.mark.parametrize("system", [(), ("--system", "Be kind.")], ids=["alone", "with a system"])
def test_budget_prompt_stands_at_the_end_of_the_system_prompt(
    run: Any, shared_bundle: Path, system: tuple[str, ...]
) -> None:
    options = ("--thinking-budget", 64, "--budget-prompt", "Think {budget} tokens.", *system)
    wanted = "".join(f"{text}\n" for text in system[1:]) + "Think 64 tokens.<|im_end|>"
    found = record(run("generate", shared_bundle, "hi", *options, "--json"))
    assert f"system\n{wanted}" in prompt_of(shared_bundle, found)
    chat = run("chat", shared_bundle, *options, "--json", input="hi\n")
    assert f"system\n{wanted}" in prompt_of(shared_bundle, record(chat))


def test_tags_can_be_given_as_text_of_several_tokens(run: Any, shared_bundle: Path) -> None:
    options = ("--think-start", "<<", "--think-end", ">>.", "--thinking-budget", 2)
    found = record(
        run("generate", shared_bundle, "<<x", "--raw", *options, "--max-tokens", 6, "--json")
    )
    assert found["text"].startswith("yz>>.") and found["thinking"]["forced_tokens"] == 3


def test_chat_sums_budgets_up(run: Any, thinker: Path) -> None:
    options = ("--thinking-budget", 2, "--max-tokens", 5)
    result = run("chat", thinker, *options, input="hi\nhi\n/stats\n")
    assert result.stdout == "</think></think>\n" * 2
    assert result.stderr.startswith("yz\nyz\n")
    assert "thinking: budget 2, temperature 0: 2 replies, 2 cut, 0 over budget" in result.stderr


@pytest.mark.parametrize("drafts", [0, 3])
def test_structured_output_follows_schema_pattern_and_grammar(
    run: Any, shared_bundle: Path, tmp_path: Path, drafts: int
) -> None:
    pytest.importorskip("llguidance", reason="grammars: pip install 'selfdraft[grammar]'")
    schema = {"type": "object", "properties": {"n": {"enum": [1, 22]}}, "required": ["n"]}
    schema["additionalProperties"] = False
    in_file = tmp_path / "schema.json"
    in_file.write_text(json.dumps(schema))
    lark = tmp_path / "sum.lark"
    lark.write_text('start: "1" ("+" "1")~2\n')
    options = ("--drafts", drafts, "--max-tokens", 150)
    for given in (json.dumps(schema), str(in_file)):
        result = run("generate", shared_bundle, "hi", "--json-schema", given, *options)
        assert json.loads(result.stdout)["n"] in (1, 22), result.stderr
    result = run("generate", shared_bundle, "hi", "--regex", "(H|q)i;[0-9]{3}", *options)
    assert re.fullmatch(r"Hi;[0-9]{3}\n", result.stdout)
    assert run("generate", shared_bundle, "hi", "--grammar", lark, *options).stdout == "1+1+1\n"


@pytest.mark.parametrize("shown", [(), ("--json",)], ids=["text", "json"])
def test_structured_reply_that_is_cut_off_says_so(
    run: Any, shared_bundle: Path, shown: tuple[str, ...]
) -> None:
    pytest.importorskip("llguidance", reason="grammars: pip install 'selfdraft[grammar]'")
    cut = run("generate", shared_bundle, "hi", "--regex", "Hi;[0-9]{9}", "--max-tokens", 4, *shown)
    assert cut.exit_code == 0
    assert "cut off (length), so it does not match its pattern; give more --max-tok" in cut.stderr
    whole = run("generate", shared_bundle, "hi", "--regex", "Hi;[0-9]{3}", *shown)
    assert "cut off" not in whole.stderr


def test_json_record_is_one_line(run: Any, shared_bundle: Path) -> None:
    assert run("generate", shared_bundle, "hi", "--json").stdout.count("\n") == 1


def test_beams_are_searched_and_printed_best_first(run: Any, shared_bundle: Path) -> None:
    options = ("--num-beams", 3, "--max-tokens", 20)
    assert run("generate", shared_bundle, "hi", *options, "--no-stream").stdout == REPLY + "\n"
    found = record(run("generate", shared_bundle, "hi", *options, "--json"))
    assert found["schema"] == "selfdraft.beams/2"
    assert found["text"] == REPLY and found["finish_reason"] == "eos"
    assert found["options"]["num_beams"] == 3 == len(found["beams"])
    scores = [beam["score"] for beam in found["beams"]]
    assert scores == sorted(scores, reverse=True) and found["score"] == scores[0]
    long = ("--length-penalty", 3, "--early-stopping", "never", "--json")
    others = record(run("generate", shared_bundle, "hi", *options, *long))
    assert others["options"]["length_penalty"] == 3 and others["steps"] == 19


def test_beams_do_not_stream(run: Any, shared_bundle: Path) -> None:
    result = run("generate", shared_bundle, "hi", "--num-beams", 2)
    assert result.exit_code == 2
    assert "cannot stream: until its end another beam may still become the best" in result.stderr
    assert "--no-stream" in result.stderr


@pytest.mark.parametrize(
    "option",
    [
        ("--temperature", 1),
        ("--mode match",),
        ("--mode rejection",),
        ("--repetition-penalty", 2),
        ("--logprobs", 0),
        ("--every", "sentence"),
        ("--top-k", 4),
        ("--top-p", 0.5),
        ("--min-p", 0.1),
        ("--seed", 0),
        ("--drafts", 1),
        ("--thinking-budget", 0),
        ("--json-schema", "{}"),
        ("--regex", "a"),
        ("--grammar", "file"),
        ("--chunk", 8),
        ("--bit-exact",),
        ("--save-cache", "file"),
        ("--load-cache", "file"),
        ("--audit-every", 2),
        ("--show-provenance",),
    ],
    ids=lambda option: option[0],
)
def test_beams_refuse_what_they_cannot_honour(
    run: Any, shared_bundle: Path, option: tuple[object, ...]
) -> None:
    words = [word for part in option for word in str(part).split()]
    result = run("generate", shared_bundle, "hi", "--num-beams", 2, "--no-stream", *words)
    assert result.exit_code == 2
    assert f"beam search takes no {option[0]}" in result.stderr


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--wrap-up", "x"), "--wrap-up means nothing without a budget"),
        (("--budget-prompt", "x"), "--budget-prompt means nothing without a budget"),
        (("--think-start", "x"), "--think-start means nothing without a budget"),
        (("--think-end", "x"), "--think-end means nothing without a budget"),
        (("--thinking-budget", 1, "--think-end", ""), "a thinking tag is empty"),
        (("--thinking-budget", 1, "--wrap-up", "a</think>"), "holds the end tag"),
        (("--thinking-budget", 1, "--budget-prompt", "{budget}", "--raw"), "--budget-prompt mean"),
        (("--thinking-budget", 1, "--budget-prompt", "x"), "{budget} is missing"),
        (("--logprobs", 2), "--logprobs shows in the JSON record only"),
        (("--regex", "a", "--json-schema", "{}"), "not several"),
        (("--json-schema", "absent.json"), "absent.json cannot be read"),
        (("--grammar", "absent.lark"), "absent.lark cannot be read"),
        (("--length-penalty", 2), "--length-penalty means nothing without beams"),
        (("--early-stopping", "never"), "--early-stopping means nothing without beams"),
        (
            ("--num-beams", 2, "--early-stopping", "often", "--no-stream"),
            "--early-stopping is 'often'",
        ),
    ],
)
def test_options_that_do_not_fit_are_refused(
    run: Any, shared_bundle: Path, options: tuple[object, ...], problem: str
) -> None:
    result = run("generate", shared_bundle, "hi", *options)
    assert result.exit_code == 2 and problem in result.stderr, result.stderr


def test_tokenizer_without_think_tags_asks_for_them(run: Any, own_bundle: Path) -> None:
    path = own_bundle / "tokenizer.json"
    data = json.loads(path.read_text())
    data["added_tokens"] = [t for t in data["added_tokens"] if "think" not in t["content"]]
    tokenizer = own_bundle.parent / "without.json"
    tokenizer.write_text(json.dumps(data))
    from selfdraft.errors import ConfigError
    from selfdraft.runtime.thinking_text import think_tags

    with pytest.raises(ConfigError, match="none of the thinking tags") as caught:
        think_tags(Tokenizer.from_file(tokenizer), end="</t>")
    assert "--think-start" in caught.value.hint
