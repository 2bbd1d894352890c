"""``selfdraft generate --num-beams``: search for the likeliest replies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from selfdraft.cli.reply import Piece, ShownText
from selfdraft.errors import ConfigError
from selfdraft.runtime.beam_search import BeamOptions, BeamResult, EarlyStopping, beam_search
from selfdraft.runtime.text_stream import TextStream
from selfdraft.runtime.thought_split import reply_tags

if TYPE_CHECKING:
    from selfdraft.cli.session import Session
    from selfdraft.runtime.request import Request

SCHEMA = "selfdraft.beams/2"
_EARLY: dict[str, EarlyStopping] = {"true": True, "false": False, "never": "never"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamChoice:
    """Beam search as the command line gives it."""

    num_beams: int | None
    length_penalty: float | None
    early_stopping: str | None

    def options(self) -> BeamOptions | None:
        """Settings of the search; None where none is asked for. Raises ``ConfigError``."""
        if self.num_beams is None:
            for name in ("length_penalty", "early_stopping"):
                if getattr(self, name) is not None:
                    option = "--" + name.replace("_", "-")
                    raise ConfigError(
                        f"{option} means nothing without beams", hint="give --num-beams N"
                    )
            return None
        early = self.early_stopping or "false"
        if early not in _EARLY:
            raise ConfigError(
                f"--early-stopping is {early!r}", hint=f"choose one of: {', '.join(_EARLY)}"
            )
        return BeamOptions(
            num_beams=self.num_beams,
            length_penalty=1.0 if self.length_penalty is None else self.length_penalty,
            early_stopping=_EARLY[early],
        )


def refuse_with_beams(given: Mapping[str, object], *, streaming: bool) -> None:
    """Refuse what a search cannot honour: ``given`` options by name, those left out are falsy."""
    if streaming:
        raise ConfigError(
            "beam search cannot stream: until its end another beam may still become the best",
            hint="add --no-stream or --json, or leave --num-beams out",
        )
    for name, value in given.items():
        if value:
            raise ConfigError(
                f"beam search takes no {name}: it follows log-probabilities, one row at a time",
                hint=f"leave out {name} or --num-beams",
            )


def search(session: Session, request: Request, options: BeamOptions) -> BeamResult:
    """The beams for ``request``, of which prompt, length and stop tokens count."""
    from selfdraft.cli.console import prompt_progress

    return beam_search(
        session.backend,
        request.prompt_ids,
        options,
        max_tokens=request.max_tokens,
        stop_ids=request.stop_token_ids,
        context_length=session.options.context,
        on_progress=prompt_progress,
    )


def beam_pieces(session: Session, tokens: Sequence[int], request: Request) -> list[Piece]:
    """Thinking and answer of a beam; an end or stop token is no part of them."""
    pieces: list[Piece] = []
    shown = ShownText(pieces.append, request, reply_tags(session.tokenizer, request))
    stream = TextStream(session.tokenizer)
    for token in _without_end(session, tokens, request):
        shown.push(token, stream.push((token,)), drafted=False)
    shown.rest(stream.finish())
    return pieces


def _without_end(session: Session, tokens: Sequence[int], request: Request) -> Sequence[int]:
    ends = {*session.bundle.manifest.text.eos_ids, *request.stop_token_ids}
    return tokens[:-1] if tokens and tokens[-1] in ends else tokens


def _texts(session: Session, tokens: Sequence[int], request: Request) -> dict[str, str | None]:
    """The text of a beam, whole and in its parts."""
    pieces = beam_pieces(session, tokens, request)
    thoughts = [piece.text for piece in pieces if piece.thinking]
    return {
        "text": session.tokenizer.decode(_without_end(session, tokens, request)),
        "thought": "".join(thoughts) if thoughts else None,
        "answer": "".join(piece.text for piece in pieces if not piece.thinking),
    }


def beam_record(session: Session, result: BeamResult, request: Request) -> dict[str, Any]:
    """The search as plain values, for ``--json``."""
    beams = [{**_texts(session, beam.tokens, request), **asdict(beam)} for beam in result.beams]
    return {
        "schema": SCHEMA,
        "bundle": str(session.bundle.path),
        "prompt_token_ids": list(request.prompt_ids),
        **beams[0],
        **asdict(result),
        "beams": beams,
    }


def beam_summary(result: BeamResult) -> str:
    """The best beam and the search on one line."""
    best = result.beams[0]
    return (
        f"{len(best.tokens)} tokens ({best.finish_reason}) · score {best.score:.4f} · "
        f"{len(result.beams)} beams in {result.steps} steps"
    )
