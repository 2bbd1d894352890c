"""Thinking is told apart from the answer, by tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.checkpoints import CHAT_TEMPLATE, write_tokenizer
from support.reciting_bundle import write_reciting_bundle

pytest.importorskip("uvicorn", reason="pip install 'selfdraft[serve]'")

from support.http_server import serving

from selfdraft.cli.load.address import loopback_address
from selfdraft.cli.load.client import CHAT, ask
from selfdraft.runtime.text_stream import TextStream
from selfdraft.runtime.thinking import ThinkTags
from selfdraft.runtime.thinking_text import think_tags
from selfdraft.runtime.thought_split import TagTexts, ThoughtSplit, tag_texts
from selfdraft.runtime.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return Tokenizer.from_file(folder / "tokenizer.json")


def split(
    tokenizer: Tokenizer, tags: TagTexts | None, text: str, prompt: str = ""
) -> tuple[str, str]:
    """Thinking and answer of a reply."""

    def ids(part: str) -> list[int]:
        return tokenizer.encode(part, add_special_tokens=False)

    parts, stream = ThoughtSplit(tags, ids(prompt)), TextStream(tokenizer)
    found = [p for token in ids(text) for p in parts.push(token, stream.push((token,)))]
    found += parts.finish(stream.finish())
    thought = "".join(part.text for part in found if part.is_thought)
    return thought, "".join(part.text for part in found if not part.is_thought)


def plain_tags(tokenizer: Tokenizer, start: str, end: str) -> TagTexts:
    return tag_texts(tokenizer, think_tags(tokenizer, start=start, end=end))


@pytest.mark.parametrize(
    ("text", "prompt", "thought", "answer"),
    [
        ("(aab)yes[/aab]no", "", "yes", "no"),
        ("hm[/aab]no", "so (aab)", "hm", "no"),
        ("no (aa (aab)hm", "", "hm", "no (aa "),
        ("(aab)hm [/aa", "", "hm [/aa", ""),
        ("(aab)a[/aab]b(aab)c[/aab]d", "", "ac", "bd"),
        ("no tags é☃", "", "", "no tags é☃"),
    ],
)
def test_tags_of_several_tokens_part_the_text(
    tokenizer: Tokenizer, text: str, prompt: str, thought: str, answer: str
) -> None:
    tags = plain_tags(tokenizer, "(aab)", "[/aab]")
    assert len(tags.tags.start_ids) > 1
    assert split(tokenizer, tags, text, prompt) == (thought, answer)
    assert split(tokenizer, None, text) == ("", text)


def test_hidden_tags_part_the_text_too(tokenizer: Tokenizer) -> None:
    hidden = next(iter(sorted(tokenizer.special_ids)))
    (end,) = tokenizer.encode("]", add_special_tokens=False)
    tags = tag_texts(tokenizer, ThinkTags(start_ids=(hidden,), end_ids=(end,)))
    text = f"a{tokenizer.token_of(hidden)}b]c"
    assert tags.start == "" and split(tokenizer, tags, text) == ("b", "ac")


def test_a_budget_and_the_thinking_are_fields(tmp_path: Path) -> None:
    thinks = CHAT_TEMPLATE.replace("assistant\n", "assistant\n<think>\n")
    bundle = write_reciting_bundle(tmp_path / "thinker", template=thinks)
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": "recite"}],
        "thinking_budget": 4,
        "max_tokens": 5,
    }
    with serving(bundle) as opened:
        address = loopback_address(opened.url)
        for stream in (False, True):
            found = ask(address, CHAT, body | {"stream": stream, "stream_options": None})
            assert (found.thought, found.text) == ("Hi,b", "")
        assert found.is_whole
        whole = ask(address, CHAT, body)
        assert whole.usage is not None
        assert whole.usage["completion_tokens_details"] == {"reasoning_tokens": 4}
