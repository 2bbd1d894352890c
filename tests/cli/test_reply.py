"""A reply that is stopped leaves caches from which the next one goes on exactly."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.reciting_bundle import REPLY

from selfdraft.cli.interrupts import StopFlag
from selfdraft.cli.prompts import ReplyOptions, SamplingOptions, prompt_ids, reply_request
from selfdraft.cli.reply import Piece, Reply, ShownText, stream_reply
from selfdraft.cli.session import EngineOptions, Session, open_session
from selfdraft.runtime.request import Request
from selfdraft.runtime.thinking import ThinkTags
from selfdraft.runtime.thought_split import TagTexts


@pytest.fixture(params=[0, 1, 3])
def session(request: pytest.FixtureRequest, shared_bundle: Path) -> Session:
    engine = EngineOptions(backend="reference", drafts=request.param, chunk=4)
    return open_session(shared_bundle, engine)


def request_for(session: Session, prompt: str) -> Request:
    options = ReplyOptions(sampling=SamplingOptions())
    return reply_request(session, prompt_ids(session, prompt, options, raw=False), options)


def shown_nowhere(_piece: Piece) -> None:
    pass


@pytest.mark.parametrize("chunks", [1, 2, 5])
def test_stopped_prefill_delivers_nothing_and_can_go_on(session: Session, chunks: int) -> None:
    loop, stop, seen = session.loop(), StopFlag(), []

    def after_some_chunks(done: int, _total: int) -> None:
        seen.append(done)
        stop.is_set = len(seen) >= chunks

    request = request_for(session, "hello")
    stopped = stream_reply(
        loop, request, show=shown_nowhere, stop=stop, on_prefill=after_some_chunks
    )
    assert stopped.stopped and stopped.result.tokens == () and stopped.text == ""
    again = stream_reply(loop, request, show=shown_nowhere)
    assert again.text == REPLY and again.result.reused_tokens > 0


@pytest.mark.parametrize("deltas", [1, 4])
def test_stopped_reply_keeps_what_was_said(session: Session, deltas: int) -> None:
    loop, stop, parts = session.loop(), StopFlag(), []

    def show(piece: Piece) -> None:
        parts.append(piece.text)
        stop.is_set = len(parts) >= deltas

    request = request_for(session, "hello")
    stopped = stream_reply(loop, request, show=show, stop=stop)
    assert stopped.result.finish_reason == "closed"
    assert stopped.text == "".join(parts) and REPLY.startswith(stopped.text)
    again = stream_reply(loop, request, show=shown_nowhere)
    assert again.text == REPLY


def test_deltas_join_to_the_text_and_flags_match_the_tokens(session: Session) -> None:
    parts: list[str] = []
    reply: Reply = stream_reply(
        session.loop(),
        request_for(session, "hello"),
        show=lambda piece: parts.append(piece.text),
    )
    assert "".join(parts) == reply.text == REPLY
    assert len(reply.drafted) == len(reply.result.tokens)
    assert sum(reply.drafted) == sum(reply.result.accepted)


def test_line_breaks_behind_a_tag_are_left_out_and_others_kept() -> None:
    tags = TagTexts(tags=ThinkTags(start_ids=(1,), end_ids=(2,)), start="", end="</think>")
    pieces: list[Piece] = []
    shown = ShownText(pieces.append, Request(prompt_ids=(1,)), tags)
    for token, text in ((9, "\n"), (9, "a\n"), (2, "</think>"), (8, "\n\n"), (8, "\nb"), (8, "\n")):
        shown.push(token, text, drafted=True)
    assert pieces == [Piece("a\n", True, True), Piece("b", True, False), Piece("\n", True, False)]
