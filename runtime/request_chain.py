"""From a request to its chain of processors, in the order of docs/decoding.md."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from selfdraft.errors import ConfigError
from selfdraft.runtime.char_completion import CharCompletion
from selfdraft.runtime.grammar import grammar_mask
from selfdraft.runtime.penalties import CountPenalty, LogitBias, RepetitionPenalty
from selfdraft.runtime.processors import Processor, ProcessorChain
from selfdraft.runtime.request import Request
from selfdraft.runtime.subsequences import last_end
from selfdraft.runtime.thinking import ThinkingBudget
from selfdraft.runtime.thinking_text import known_tags
from selfdraft.runtime.token_bans import (
    AllowedTokens,
    BadWords,
    BannedTokens,
    MinTokens,
    NoRepeatNgram,
)

if TYPE_CHECKING:
    from selfdraft.runtime.tokenizer import Tokenizer


def build_chain(
    request: Request,
    *,
    vocab_size: int,
    end_ids: Collection[int],
    eos_ids: Collection[int] = (),
    tokenizer: Tokenizer | None = None,
) -> ProcessorChain:
    """The processors that ``request`` asks for; an empty chain where it asks for none.

    ``end_ids`` end the reply; of these ``eos_ids`` are the model's own. Raises ``ConfigError`` for
    bad words or a grammar without a tokenizer.
    """
    return ProcessorChain(
        [
            *_penalties(request, vocab_size),
            *_bans(request, vocab_size, end_ids, tokenizer),
            *request.processors,
            *_budget(request, vocab_size, tokenizer),
            *_grammar(request, vocab_size, eos_ids, tokenizer),
        ]
    )


def _penalties(request: Request, vocab_size: int) -> list[Processor]:
    logits, chain = request.logits, list[Processor]()
    if logits.repetition_penalty != 1:
        chain.append(
            RepetitionPenalty(logits.repetition_penalty, request.prompt_ids, vocab_size=vocab_size)
        )
    if logits.frequency_penalty or logits.presence_penalty:
        chain.append(
            CountPenalty(
                frequency=logits.frequency_penalty,
                presence=logits.presence_penalty,
                vocab_size=vocab_size,
            )
        )
    if logits.logit_bias:
        chain.append(LogitBias(logits.logit_bias, vocab_size=vocab_size))
    return chain


def _bans(
    request: Request, vocab_size: int, end_ids: Collection[int], tokenizer: Tokenizer | None
) -> list[Processor]:
    logits, chain = request.logits, list[Processor]()
    if logits.banned_token_ids:
        chain.append(BannedTokens(logits.banned_token_ids, vocab_size=vocab_size))
    if logits.allowed_token_ids is not None:
        chain.append(AllowedTokens(logits.allowed_token_ids, vocab_size=vocab_size))
    if logits.bad_words:
        chain.append(BadWords(_spellings(logits.bad_words, tokenizer)))
    if request.min_tokens:
        chain.append(MinTokens(request.min_tokens, sorted(end_ids)))
    if logits.no_repeat_ngram_size:
        chain.append(NoRepeatNgram(logits.no_repeat_ngram_size, request.prompt_ids))
    return chain


def _budget(request: Request, vocab_size: int, tokenizer: Tokenizer | None) -> list[Processor]:
    """The thinking budget. Without a tokenizer no bytes are known, and none are waited for."""
    thinking = request.thinking
    if thinking is None:
        return []
    completion = None
    if tokenizer is not None:
        bytes_of = tokenizer.token_bytes
        completion = tokenizer.derived(
            ("completion", vocab_size), lambda: CharCompletion(bytes_of, vocab_size=vocab_size)
        )
    opened = thinking.tags.open_in(request.prompt_ids)
    return [ThinkingBudget(thinking, opened=opened, completion=completion)]


def _grammar(
    request: Request, vocab_size: int, eos_ids: Collection[int], tokenizer: Tokenizer | None
) -> list[Processor]:
    """The grammar, which waits while thinking is open.

    Thinking that the prompt does not open can come first where a budget allows it.
    """
    if request.structured is None:
        return []
    if tokenizer is None:
        raise ConfigError(
            "structured output is about text, and this loop has no tokenizer",
            hint="give DecodeLoop the bundle's tokenizer",
        )
    budget = request.thinking.budget if request.thinking else 0
    tags = request.thinking.tags if request.thinking else known_tags(tokenizer)
    opened = tags is not None and tags.open_in(request.prompt_ids)
    closed = (
        tags is not None
        and not tokenizer.decode(
            request.prompt_ids[last_end(request.prompt_ids, tags.end_ids) or 0 :],
            skip_special=False,
        ).strip()
    )
    mask = grammar_mask(
        request.structured,
        tokenizer,
        vocab_size=vocab_size,
        eos_ids=eos_ids,
        tags=tags,
        opened=opened,
        may_open=bool(budget and tags and len(tags.start_ids) == 1 and not closed),
    )
    return [mask]


def _spellings(words: Sequence[str], tokenizer: Tokenizer | None) -> list[list[int]]:
    """Tokens of each word, as the first one of a text and after a space."""
    if tokenizer is None:
        raise ConfigError(
            "bad_words are texts, and this loop has no tokenizer",
            hint="give DecodeLoop the bundle's tokenizer, or ban tokens: banned_token_ids",
        )
    found: list[list[int]] = []
    for word in words:
        for text in (word, " " + word.lstrip()):
            ids = tokenizer.encode(text, add_special_tokens=False)
            if ids and ids not in found:
                found.append(ids)
    return found
