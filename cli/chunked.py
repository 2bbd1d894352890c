"""``--every``, ``--max-chunks`` and ``--resume`` of generate: a reply in chunks, stopped and gone on with."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from selfdraft.cli.reply import Reply, Show, ShownText
from selfdraft.errors import ConfigError
from selfdraft.runtime.chunks import ChunkedReply, checked_border
from selfdraft.runtime.loop import DecodeLoop
from selfdraft.runtime.request import Request
from selfdraft.runtime.request_json import request_from_json, request_to_json
from selfdraft.runtime.thought_split import TagTexts

STOPPED_REQUEST = "stopped_request"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkOptions:
    """Chunks as the command line gives them. Raises ``ConfigError``."""

    every: str | None = None
    max_chunks: int | None = None
    resume: bool = False

    def __post_init__(self) -> None:
        if self.max_chunks is not None and self.every is None:
            raise ConfigError(
                "--max-chunks counts chunks, and there are none", hint="give --every N or sentence"
            )
        if self.every is not None:
            checked_border(self.border)

    @property
    def border(self) -> int | str:
        """Where a chunk ends."""
        assert self.every is not None
        return int(self.every) if self.every.isdecimal() else self.every


def stream_chunks(
    loop: DecodeLoop,
    request: Request,
    options: ChunkOptions,
    *,
    show: Show,
    tags: TagTexts | None = None,
    on_prefill: Callable[[int, int], None] | None = None,
) -> tuple[Reply, dict[str, str]]:
    """Run ``request`` chunk by chunk; the reply, and what to keep beside its cache."""
    chunks = ChunkedReply(loop, request, every=options.border, on_progress=on_prefill)
    shown = ShownText(show, request, tags)
    for count, chunk in enumerate(chunks, start=1):
        shown.take(chunk.events)
        if count == options.max_chunks:
            chunks.stop()
            break
    result = chunks.result
    stopped = result.finish_reason == "closed"
    extra = {STOPPED_REQUEST: json.dumps(request_to_json(chunks.resumption))} if stopped else {}
    return shown.finish(result, stopped=stopped), extra


def resumed_request(extra: Mapping[str, str], *, max_tokens: int | None) -> Request:
    """The request that a cache was saved with. ``max_tokens``: another limit than the old one."""
    if STOPPED_REQUEST not in extra:
        raise ConfigError(
            "there is no stopped reply to resume",
            hint="give --load-cache a file saved with --max-chunks and --save-cache",
        )
    request = request_from_json(json.loads(extra[STOPPED_REQUEST]))
    return request if max_tokens is None else replace(request, max_tokens=max_tokens)
