"""The turns of a chat: read a line, answer it, keep what was said."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from selfdraft.cli.attention_counters import attention_text, audit_text
from selfdraft.cli.cache_files import CacheFiles
from selfdraft.cli.console import ReplyWriter, note, print_json_line, prompt_progress
from selfdraft.cli.conversation import Conversation
from selfdraft.cli.interrupts import stop_on_interrupt
from selfdraft.cli.prompts import ReplyOptions, prompt_args, reply_request
from selfdraft.cli.reply import (
    Reply,
    cut_text,
    rate_text,
    reply_record,
    stream_reply,
    summary_line,
)
from selfdraft.cli.reply_telemetry import ReplyTelemetry
from selfdraft.cli.session import NEVER_PAYS, Session
from selfdraft.errors import ConfigError, ResourceError, ToolkitError
from selfdraft.runtime.result import GenerationResult
from selfdraft.runtime.thinking_record import thinking_rates
from selfdraft.runtime.thought_split import reply_tags
from selfdraft.strict import closest_hint

CONVERSATION = "conversation"
SAVE_SCHEMA = "selfdraft.chat/1"
PROMPT = "> "
HELP = """\
/reset      forget the conversation
/stats      speed and acceptance so far
/save FILE  write the conversation as JSON
/quit       leave (so do Ctrl-D, and Ctrl-C at the prompt)
Ctrl-C      stop the reply"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatView:
    """How replies are shown."""

    provenance: bool = False
    as_json: bool = False
    telemetry: Path | None = None


class Chat:
    """One conversation with one bundle, on one loop that keeps its caches."""

    def __init__(
        self, session: Session, options: ReplyOptions, view: ChatView, files: CacheFiles
    ) -> None:
        self._session = session
        self._options = options
        self._view = view
        self._interactive = sys.stdin.isatty()
        self._telemetry = ReplyTelemetry(session, view.telemetry)
        self._loop = session.loop(telemetry=self._telemetry.meter)
        template = session.chat_template()
        self._conversation = Conversation(
            template,
            session.tokenizer,
            system=options.thinking.system(options.system),
            args=prompt_args(template, options),
        )
        self._files = files
        saved = files.restore(self._loop, session).get(CONVERSATION)
        if saved is not None:
            self._conversation.restore(saved, self._loop.tokens(0))
        self._results: list[GenerationResult] = []
        self._saved: set[Path] = set()
        self._commands: dict[str, Callable[[str], None]] = {
            "/help": lambda _: note(HELP),
            "/reset": self._reset,
            "/stats": self._stats,
            "/save": self._save,
        }

    def run(self) -> int:
        """Take messages until the end of the input, ``/quit``, or Ctrl-C at the prompt.

        Exit code: 0; with piped input the one of the first error, after which it went on. The
        cache is kept in any case where no reply was cut off in the middle of a step.
        """
        try:
            exit_code = self._take_messages()
        except KeyboardInterrupt:
            if not self._loop.active:
                self._keep_cache()
            raise
        self._keep_cache()
        return exit_code

    def _take_messages(self) -> int:
        if self._interactive:
            self._greet()
        exit_code = 0
        while (line := self._read()) is not None:
            text = line.strip()
            if text == "/quit":
                break
            try:
                if text.startswith("/"):
                    self._command(text)
                elif text:
                    self._answer(text)
            except ToolkitError as error:
                note(f"error: {error.problem}\nhint: {error.hint}")
                exit_code = exit_code or (0 if self._interactive else error.exit_code)
        return exit_code

    def _keep_cache(self) -> None:
        """Write the cache and the conversation, where that is asked for."""
        said = self._conversation.saved_text(self._loop.tokens(0))
        self._files.keep(self._loop, self._session, extra={CONVERSATION: said})

    def _greet(self) -> None:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 - gives input() a history
        text = self._session.bundle.manifest.text
        source = self._session.bundle.manifest.source.name
        note(f"{source}. {text.banner or ''}".rstrip())
        if text.examples:
            note("try: " + " · ".join(text.examples))
        if self._session.never_pays(self._loop):
            note(NEVER_PAYS)
        note("/help lists the commands")

    def _read(self) -> str | None:
        """The next line; ``None`` at the end of the input."""
        if not self._interactive:
            data = sys.stdin.buffer.readline()
            return data.decode("utf-8", errors="replace") if data else None
        try:
            return input(PROMPT)
        except EOFError:
            note("")
            return None

    def _command(self, text: str) -> None:
        name, _, rest = text.partition(" ")
        if name not in self._commands:
            known = [*self._commands, "/quit"]
            raise ConfigError(
                f"unknown command {name}{closest_hint(name, known)}", hint="see /help"
            )
        self._commands[name](rest.strip())

    def _answer(self, text: str) -> None:
        ids = self._conversation.prompt_with(text)
        self._check_room(len(ids))
        request = reply_request(self._session, ids, self._options)
        writer = ReplyWriter(provenance=self._view.provenance)
        show = (lambda _piece: None) if self._view.as_json else writer.write
        with stop_on_interrupt() as stop:
            reply = stream_reply(
                self._loop,
                request,
                show=show,
                tags=reply_tags(self._session.tokenizer, request),
                stop=stop,
                on_prefill=prompt_progress,
            )
        writer.finish()
        if reply.result.tokens:
            self._keep(reply)
        if self._view.as_json:
            bundle = str(self._session.bundle.path)
            print_json_line(reply_record(reply, bundle=bundle, prompt_ids=ids))
        self._comment(reply)
        self._telemetry.after(request.task, reply.result)
        if cut := cut_text(reply, request):
            note(cut)

    def _check_room(self, num_tokens: int) -> None:
        """Refuse a turn that leaves no room for a reply, before anything is computed."""
        capacity = self._loop.context_length
        if num_tokens >= capacity:
            raise ResourceError(
                f"the conversation would have {num_tokens} tokens, the context holds {capacity} "
                "with the reply; this message was not sent",
                hint="/save FILE keeps the conversation, /reset starts a new one; "
                "a larger --context may be possible (selfdraft inspect)",
            )

    def _keep(self, reply: Reply) -> None:
        tokens = list(reply.result.tokens)
        if reply.result.finish_reason == "eos" or isinstance(reply.result.stop_reason, int):
            tokens.pop()
        # A stop string may begin inside a token, whose text is then only said in part.
        decode = self._session.tokenizer.decode
        while not reply.text.startswith(spelled := decode(tokens)):
            tokens.pop()
        self._conversation.add_turn(
            reply.text, tokens, spelled=spelled, thought=reply.thought, answer=reply.answer
        )
        self._results.append(reply.result)

    def _comment(self, reply: Reply) -> None:
        if reply.stopped:
            note("(stopped)")
        if self._interactive:
            note(f"[{summary_line(reply.result)}]")
        elif audited := audit_text([reply.result]):
            note(audited)
        if reply.result.finish_reason == "context":
            note(
                f"the context of {self._loop.context_length} tokens is full, so the reply ends "
                "here; /save FILE keeps the conversation, /reset starts a new one"
            )

    def _reset(self, _rest: str) -> None:
        self._conversation.reset()
        self._loop.reset(0)
        self._saved.clear()  # another conversation must not replace the one that was saved
        note("the conversation is forgotten")

    def _stats(self, _rest: str) -> None:
        if not self._results:
            note("nothing was said yet")
            return
        note(f"last reply: {summary_line(self._results[-1])}")
        results = self._results
        tokens = sum(max(len(r.tokens) - 1, 0) for r in results)
        steps = sum(r.steps for r in results)
        seconds = sum(r.decode_s for r in results)
        drafted, accepted = (
            sum(sum(r.drafted) for r in results),
            sum(sum(r.accepted) for r in results),
        )
        if steps:
            share = f", accepted {accepted} of {drafted} drafts" if drafted else ""
            note(
                f"{len(results)} replies: {tokens / seconds:.1f} tokens/s, "
                f"{tokens / steps:.2f} tokens a step{share}"
            )
        if read := attention_text(results):
            note(f"attention: {read}")
        for rate in thinking_rates(r.thinking for r in results if r.thinking):
            note(f"thinking: {rate_text(rate)}")
        if audited := audit_text(results):
            note(audited)
        for alert in self._telemetry.meter.snapshot().alerts:
            note(f"alert: {alert.text}")
        used, capacity = len(self._loop.tokens(0)), self._loop.context_length
        note(f"context: {used} of {capacity} tokens")

    def _save(self, rest: str) -> None:
        if not rest:
            raise ConfigError("/save needs a file name", hint="e.g. /save talk.json")
        path = _save_path(rest)
        if path.exists() and path.resolve() not in self._saved:
            raise ConfigError(f"{path} exists already", hint="choose another name")
        record = {
            "schema": SAVE_SCHEMA,
            "bundle": str(self._session.bundle.path),
            "messages": self._conversation.messages,
        }
        try:
            _write_whole(path, json.dumps(record, indent=1, ensure_ascii=False) + "\n")
        except OSError as error:
            raise ResourceError(
                f"{path} cannot be written: {error.strerror}", hint="choose another place"
            ) from None
        self._saved.add(path.resolve())
        note(f"saved {len(self._conversation.messages)} messages to {path}")


def _save_path(text: str) -> Path:
    """The file that ``/save`` names; ``ConfigError`` for another user's home that is not there."""
    try:
        if "\0" not in text:
            return Path(text).expanduser()
    except RuntimeError:
        pass
    raise ConfigError(f"{text!r} is no file name", hint="e.g. /save talk.json")


def _write_whole(path: Path, text: str) -> None:
    """Write ``path`` so that a full disk leaves the old file."""
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        partial.write_text(text, "utf-8")
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
