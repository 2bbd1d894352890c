"""``--save-cache``, ``--load-cache`` and ``--prefill`` of generate and chat."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from selfdraft.cli.chat_loop import Chat
from selfdraft.cli.conversation import Conversation
from selfdraft.cli.session import EngineOptions, open_session
from selfdraft.errors import ConfigError

TEXT = "the quick brown fox jumps over the lazy dog 0123456789 " * 12
QUESTION = "what did it jump over?"


def record(result: Any) -> dict[str, Any]:
    assert result.exit_code == 0, result.stderr
    parsed: dict[str, Any] = json.loads(result.stdout)
    return parsed


@pytest.mark.parametrize("drafts", [0, 2])
@pytest.mark.parametrize("prefill", ["dense", "sparse"])
@pytest.mark.parametrize("backend", ["ort", "reference"])
def test_loaded_document_gives_the_tokens_of_a_whole_prompt(
    run: Any, sparse_bundle: Path, tmp_path: Path, backend: str, prefill: str, drafts: int
) -> None:
    file = tmp_path / "doc.cache"
    common = ("--raw", "--backend", backend, "--drafts", drafts, "--prefill", prefill)
    options = (*common, "--max-tokens", 12, "--json")
    first = run("generate", sparse_bundle, TEXT, *options, "--save-cache", file)
    saved = record(first)
    assert "saved" in first.stderr and saved["prompt_tokens"] > 600
    asked = run("generate", sparse_bundle, TEXT + QUESTION, *options, "--load-cache", file)
    loaded = record(asked)
    assert "loaded" in asked.stderr
    whole = record(run("generate", sparse_bundle, TEXT + QUESTION, *options))
    assert loaded["tokens"] == whole["tokens"]
    assert whole["reused_tokens"] == 0 and loaded["reused_tokens"] > 600


def test_chat_goes_on_where_it_was(run: Any, endless_bundle: Path, tmp_path: Path) -> None:
    file = tmp_path / "chat.cache"
    options = ("--max-tokens", 15, "--json")
    whole = run("chat", endless_bundle, *options, input="one\ntwo\n")
    expected = [json.loads(line) for line in whole.stdout.splitlines()]
    first = run("chat", endless_bundle, *options, "--save-cache", file, input="one\n")
    assert first.exit_code == 0 and "saved" in first.stderr
    second = run("chat", endless_bundle, *options, "--load-cache", file, input="two\n")
    went_on = record(second)
    for name in ("prompt_token_ids", "tokens", "reused_tokens", "accepted", "text"):
        assert went_on[name] == expected[1][name], name
    assert went_on["reused_tokens"] > expected[0]["prompt_tokens"]


def test_chat_takes_the_cache_of_generate(run: Any, endless_bundle: Path, tmp_path: Path) -> None:
    file = tmp_path / "g.cache"
    options = ("--max-tokens", 6, "--json")
    run("generate", endless_bundle, "one", *options, "--save-cache", file)
    reply = record(run("chat", endless_bundle, *options, "--load-cache", file, input="one\n"))
    assert reply["reused_tokens"] == reply["prompt_tokens"] - 1 or reply["reused_tokens"] > 5


def test_saved_system_prompt_stays(run: Any, endless_bundle: Path, tmp_path: Path) -> None:
    file = tmp_path / "s.cache"
    options = ("--max-tokens", 5, "--json")
    start = (*options, "--system", "Be brief.", "--save-cache", file)
    assert run("chat", endless_bundle, *start, input="one\n").exit_code == 0
    second = run("chat", endless_bundle, *options, "--load-cache", file, input="two\n")
    whole = run("chat", endless_bundle, *options, "--system", "Be brief.", input="one\ntwo\n")
    assert (
        record(second)["prompt_token_ids"]
        == json.loads(whole.stdout.splitlines()[1])["prompt_token_ids"]
    )
    other = (*options, "--system", "Rhyme.", "--load-cache", file)
    refused = run("chat", endless_bundle, *other, input="two\n")
    assert refused.exit_code == 2 and "another system prompt" in refused.stderr


def test_conversation_without_its_tokens_is_encoded_anew(
    shared_bundle: Path,
) -> None:
    session = open_session(shared_bundle, EngineOptions(backend="reference"))

    def conversation(system: str | None = None) -> Conversation:
        return Conversation(session.chat_template(), session.tokenizer, system=system)

    talk = conversation()
    asked = talk.prompt_with("one")
    talk.add_turn("Hi", [9, 9])
    kept, lost = conversation(), conversation()
    kept.restore(talk.saved_text([*asked, 9, 9, 4]), [*asked, 9, 9, 4])
    lost.restore(talk.saved_text([1, 2]), [1, 2])
    ids = kept.prompt_with("two")
    assert ids[: len(asked) + 2] == [*asked, 9, 9] == talk.prompt_with("two")[: len(asked) + 2]
    assert lost.prompt_with("two") != ids
    assert session.tokenizer.decode(lost.prompt_with("two")).count("Hi") == 1
    with pytest.raises(ConfigError, match="another system prompt"):
        conversation("Rhyme.").restore(talk.saved_text([]), [])


def test_interrupt_at_the_prompt_keeps_the_cache(
    run: Any, endless_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = iter(["one\n"])

    def read(_chat: Chat) -> str:
        for line in lines:
            return line
        raise KeyboardInterrupt

    monkeypatch.setattr(Chat, "_read", read)
    file = tmp_path / "i.cache"
    result = run("chat", endless_bundle, "--max-tokens", 5, "--save-cache", file)
    assert result.exit_code == 130 and "saved" in result.stderr and file.exists()


@pytest.mark.parametrize(
    "saved", ["{", "[]", '{"messages": 3}', '{"messages": [{"role": "user"}]}']
)
def test_damaged_conversation_is_refused(shared_bundle: Path, saved: str) -> None:
    session = open_session(shared_bundle, EngineOptions(backend="reference"))
    talk = Conversation(session.chat_template(), session.tokenizer)
    with pytest.raises(ConfigError, match="cannot be read"):
        talk.restore(saved, [])


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_taken_place_is_refused_before_anything_runs(
    run: Any, shared_bundle: Path, tmp_path: Path, command: str
) -> None:
    taken = tmp_path / "notes.txt"
    taken.write_text("mine")
    prompt = ("hi",) if command == "generate" else ()
    result = run(command, shared_bundle, *prompt, "--save-cache", taken, input="hi\n")
    assert result.exit_code == 2 and "is no saved cache" in result.stderr and not result.stdout
    assert taken.read_text() == "mine"


def test_cache_of_another_bundle_is_refused(
    run: Any, shared_bundle: Path, endless_bundle: Path, tmp_path: Path
) -> None:
    file = tmp_path / "x.cache"
    assert run("generate", shared_bundle, "hi", "--save-cache", file).exit_code == 0
    result = run("generate", endless_bundle, "hi", "--load-cache", file)
    assert result.exit_code == 3 and "another bundle" in result.stderr


def test_sparse_prefill_needs_a_sparse_bundle(run: Any, shared_bundle: Path) -> None:
    result = run("generate", shared_bundle, "hi", "--prefill", "sparse")
    assert result.exit_code == 2 and "attends densely" in result.stderr


def test_states_move_between_engines(sparse_bundle: Path, tmp_path: Path) -> None:
    """A cache saved by one engine is one for the others: the same states by the same names."""
    from selfdraft.cli.torch_backend import TorchBackend
    from selfdraft.runtime.cache_file import load_cache, save_cache
    from selfdraft.runtime.loop import DecodeLoop
    from selfdraft.runtime.request import Request

    session = open_session(sparse_bundle, EngineOptions(backend="ort", threads=1))
    manifest = session.bundle.manifest
    torch_engine: Any = TorchBackend(sparse_bundle, manifest)
    prompt = tuple(session.tokenizer.encode(TEXT[:80], add_special_tokens=False))

    def turn(loop: DecodeLoop, ids: tuple[int, ...]) -> tuple[int, ...]:
        loop.begin({0: Request(prompt_ids=ids, max_tokens=6, ignore_eos=True)})
        while loop.active:
            loop.step()
        return loop.result(0).tokens

    first = DecodeLoop(torch_engine, drafts=1, context_length=256)
    turn(first, prompt)
    save_cache(tmp_path / "t.cache", first.slot_cache(0), manifest)
    going_on = (*first.tokens(0), *prompt[:5])
    expected = turn(first, going_on)
    for engine in (torch_engine, session.backend):
        loop = DecodeLoop(engine, drafts=1, context_length=256)
        loop.restore(0, load_cache(tmp_path / "t.cache", manifest).slot)
        assert turn(loop, going_on) == expected
        # Decode steps were sparse; the reply is computed anew as the prompt it is now.
        assert loop.result(0).reused_tokens == len(prompt)
