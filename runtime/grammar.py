"""Structured output: only tokens that a JSON schema, a regular expression or a grammar allows.

The grammar is kept by llguidance (an optional extra); this processor masks each row by it and
moves it on with the tokens of the reply. While the thinking is open the grammar waits: it covers
what follows the end tag. Where the grammar is complete only an end token can follow.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from selfdraft.errors import ConfigError
from selfdraft.runtime.processors import Processor
from selfdraft.runtime.row_view import RowView
from selfdraft.runtime.subsequences import Matcher
from selfdraft.runtime.thinking import ThinkTags

if TYPE_CHECKING:
    from selfdraft.runtime.tokenizer import Tokenizer

Kind = Literal["json_schema", "regex", "lark"]
_SMALL_LIST = 1024
"""Up to this number all allowed tokens are looked up, so that no row must be fetched."""

_WHITESPACE = r"[ \n\t]{0,16}"
"""Between the parts of JSON: without an end to it a model can go on with spaces for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutput:
    """What the text of a reply must match, thinking and end token left out."""

    kind: Kind
    """``lark``: a grammar in llguidance's dialect of Lark, with the rule ``start``."""
    source: str


class GrammarMask(Processor):
    """Lets a reply go only where the grammar goes.

    ``matcher`` is an ``LLMatcher`` of this sequence alone. ``opened``: the prompt ends inside
    thinking. ``may_open``: a start tag of one token may come first, before the grammar.
    """

    def __init__(
        self,
        matcher: Any,
        *,
        vocab_size: int,
        eos_ids: Collection[int],
        tags: ThinkTags | None = None,
        opened: bool = False,
        may_open: bool = False,
    ) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._eos_ids = frozenset(eos_ids)
        self._end = Matcher(tags.end_ids) if tags else None
        self._waiting = opened
        self._opening = tags.start_ids[0] if tags and may_open and not opened else None
        self._ended = False
        self._mask: NDArray[np.bool_] | None = None
        self._allowed: list[int] = []

    @property
    def active(self) -> bool:
        return not self._waiting and not self._ended

    @property
    def wanted_ids(self) -> Sequence[int]:
        self._fill_mask()
        return self._allowed if len(self._allowed) <= _SMALL_LIST else ()

    def process(self, row: RowView) -> None:
        row.keep_where(self._fill_mask(), num_allowed=len(self._allowed))

    def advance(self, token: int) -> None:
        self._mask = None
        opening, self._opening = self._opening, None
        if self._waiting:
            assert self._end is not None
            self._waiting = not self._end.push(token)
        elif token == opening:
            self._waiting = True
        elif token in self._eos_ids:
            self._ended = True
        elif not self._ended:
            self._matcher.consume_token(token)

    def clone(self) -> GrammarMask:
        twin = object.__new__(GrammarMask)
        twin.__dict__.update(self.__dict__)
        twin._matcher = self._matcher.deep_copy()
        twin._end = self._end.clone() if self._end else None
        return twin

    def _fill_mask(self) -> NDArray[np.bool_]:
        """For each token whether it may follow; computed once a row."""
        if self._mask is None:
            bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
            if self._matcher.is_error():
                raise ConfigError(
                    f"the grammar cannot go on: {_one_line(self._matcher.get_error())}",
                    hint="simplify it: fewer alternatives, shorter repetitions",
                )
            mask = np.unpackbits(bits, bitorder="little")[: self._vocab_size].astype(bool)
            if self._opening is not None:
                mask[self._opening] = True
            self._mask, self._allowed = mask, np.flatnonzero(mask).tolist()
        return self._mask


def grammar_mask(
    output: StructuredOutput,
    tokenizer: Tokenizer,
    *,
    vocab_size: int,
    eos_ids: Collection[int],
    **thinking: Any,
) -> GrammarMask:
    """A processor for ``output``; ``thinking`` as ``GrammarMask`` takes it.

    Raises ``ConfigError`` without llguidance, without an end token, and for a grammar that cannot
    be read.
    """
    if not eos_ids:
        raise ConfigError(
            "structured output needs an end token, and this request has none",
            hint="leave ignore_eos out, and use a bundle with end tokens",
        )
    llguidance = _llguidance()
    inner = tokenizer.derived(
        ("llguidance", vocab_size, frozenset(eos_ids)),
        lambda: llguidance.LLTokenizer(
            tokenizer.to_json(), n_vocab=vocab_size, eos_token=sorted(eos_ids)
        ),
    )
    matcher = llguidance.LLMatcher(inner, _grammar(llguidance, output), log_level=0)
    if matcher.is_error():
        raise _unreadable(output, matcher.get_error())
    return GrammarMask(matcher, vocab_size=vocab_size, eos_ids=eos_ids, **thinking)


def _grammar(llguidance: Any, output: StructuredOutput) -> Any:
    if output.kind == "regex":
        return llguidance.LLMatcher.grammar_from_regex(output.source)
    if output.kind == "lark":
        return llguidance.LLMatcher.grammar_from_lark(output.source)
    try:
        json.loads(output.source)
        return llguidance.LLMatcher.grammar_from_json_schema(
            output.source, defaults={"whitespace_pattern": _WHITESPACE}
        )
    except (ValueError, RecursionError) as error:
        raise _unreadable(output, str(error)) from None


def _llguidance() -> Any:
    try:
        import llguidance
    except ImportError:
        raise ConfigError(
            "structured output needs llguidance, which is not installed",
            hint="install it: pip install 'selfdraft[grammar]'",
        ) from None
    return llguidance


def _unreadable(output: StructuredOutput, reason: str) -> ConfigError:
    names = {"json_schema": "JSON schema", "regex": "regular expression", "lark": "grammar"}
    return ConfigError(
        f"the {names[output.kind]} cannot be used: {_one_line(reason)}", hint="correct it"
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300]
