"""Each processor by its rule, and the same tokens from candidates as from the whole row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selfdraft.errors import ConfigError
from selfdraft.runtime.candidates import top_candidates
from selfdraft.runtime.distribution import distribution_of_row
from selfdraft.runtime.logit_params import LogitParams
from selfdraft.runtime.penalties import CountPenalty, LogitBias, RepetitionPenalty
from selfdraft.runtime.processors import Processor, ProcessorChain
from selfdraft.runtime.request import Request
from selfdraft.runtime.request_chain import build_chain
from selfdraft.runtime.row_sampler import RowSampler
from selfdraft.runtime.row_view import RowView, candidate_view, full_view
from selfdraft.runtime.sampling import SamplingLaw
from selfdraft.runtime.token_bans import (
    AllowedTokens,
    BadWords,
    BannedTokens,
    MinTokens,
    NoRepeatNgram,
)

V = 8
PROMPT = (1, 2, 1, 3)


class Force(Processor):
    """Leaves one token, as a budget that has run out does."""

    def __init__(self, token: int) -> None:
        self._token = token

    @property
    def wanted_ids(self) -> Sequence[int]:
        return [self._token]

    def process(self, row: RowView) -> None:
        row.force(self._token)

    def clone(self) -> Force:
        return self


def _processed(processor: Processor, row: Sequence[float], said: Sequence[int] = ()) -> list[float]:
    chain = ProcessorChain([processor])
    for token in said:
        chain.advance(token)
    view = full_view(np.array(row, dtype=np.float64))
    for active in chain.active():
        active.process(view)
    return view.values.tolist()


def test_repetition_penalty_divides_positive_and_multiplies_negative_logits_of_seen_tokens() -> (
    None
):
    processor = RepetitionPenalty(2.0, PROMPT, vocab_size=6)
    row = [4.0, 4.0, -4.0, 0.0, 4.0, 4.0]
    assert _processed(processor, row, said=[5]) == [4.0, 2.0, -8.0, 0.0, 4.0, 2.0]


@pytest.mark.parametrize("factor", [1e-30, 1e-300, 5e-324])
def test_the_smallest_repetition_penalties_give_all_to_the_likeliest_token_seen(
    factor: float,
) -> None:
    processor = RepetitionPenalty(factor, (0, 1, 2, 3), vocab_size=6)
    row = [5.0, np.nextafter(np.float32(5), np.float32(9)), -3e38, -np.inf, 7.0, 9.0]
    with np.errstate(all="raise", under="ignore"):
        first, second, third, banned, *others = _processed(processor, row)
        law = SamplingLaw(temperature=1e-30, top_k=0, top_p=1.0, min_p=0.0, seed=0)
        shares = distribution_of_row(np.array([first, second, third, *others[1:]]), law)
    assert others == row[4:] and banned == -np.inf
    assert 9 < first < second < np.inf and -1e10 < third <= 0
    assert shares is not None and shares.shares.tolist() == [0, 1, 0, 0]


def test_count_penalties_see_the_reply_only_and_count_every_time() -> None:
    processor = CountPenalty(frequency=0.5, presence=1.0, vocab_size=4)
    assert _processed(processor, [0.0] * 4) == [0.0] * 4
    assert _processed(processor, [0.0] * 4, said=[1, 1, 3]) == [0.0, -2.0, 0.0, -1.5]


def test_bias_is_added() -> None:
    assert _processed(LogitBias({0: 2.0, 2: -1.0}, vocab_size=3), [1.0, 1.0, 1.0]) == [3, 1, 0]


def test_lists_ban_and_allow() -> None:
    gone = -np.inf
    assert _processed(BannedTokens([1], vocab_size=3), [1, 2, 3]) == [1, gone, 3]
    assert _processed(AllowedTokens([1], vocab_size=3), [1, 2, 3]) == [gone, 2, gone]


def test_bad_words_ban_the_last_token_of_a_sequence_that_the_reply_has_begun() -> None:
    gone = -np.inf
    processor = BadWords([[0, 1], [2]])
    assert _processed(processor, [1, 1, 1]) == [1, 1, gone]
    assert _processed(processor, [1, 1, 1], said=[0]) == [1, gone, gone]
    assert _processed(processor, [1, 1, 1], said=[0, 0]) == [1, gone, gone]
    assert _processed(processor, [1, 1, 1], said=[0, 2]) == [1, 1, gone]


def test_no_ngram_of_prompt_and_reply_comes_twice() -> None:
    gone = -np.inf
    assert _processed(NoRepeatNgram(2, PROMPT), [1.0] * 4, said=[1]) == [1, 1, gone, gone]
    assert _processed(NoRepeatNgram(2, PROMPT), [1.0] * 4, said=[0]) == [1, 1, 1, 1]
    assert _processed(NoRepeatNgram(3, PROMPT), [1.0] * 4, said=[1, 2]) == [1, gone, 1, 1]
    assert _processed(NoRepeatNgram(1, PROMPT), [1.0] * 4) == [1, gone, gone, gone]


def test_end_tokens_are_banned_for_as_long_as_min_tokens_says() -> None:
    gone = -np.inf
    assert _processed(MinTokens(2, [0]), [1, 1], said=[1]) == [gone, 1]
    assert _processed(MinTokens(2, [0]), [1, 1], said=[1, 1]) == [1, 1]


def test_forced_token_is_the_only_one_left_and_a_banned_one_leaves_none() -> None:
    row = np.arange(6.0)
    for first, left in ((None, 1), (BannedTokens([2], vocab_size=6), 0)):
        chain = ProcessorChain([*([first] if first else []), Force(2)])
        view = full_view(row)
        candidates = candidate_view(
            row[:3:-1], np.array([5, 4]), [2], vocab_size=6, entries=lambda ids: row[ids]
        )
        for processor in chain.active():
            processor.process(view)
            processor.process(candidates)
        assert np.isfinite(view.values).sum() == np.isfinite(candidates.values).sum() == left


def test_chain_rewinds_to_any_earlier_point_and_clones_go_their_own_way() -> None:
    chain = _chain(dict.fromkeys(_PARTS, True))
    tokens = [1, 2, 1, 4, 4, 0, 2, 1, 3]
    rows = []
    for token in tokens:
        rows.append(_view_of(chain))
        chain.advance(token)
    end = _view_of(chain)
    for back in range(len(tokens) + 1):
        branch = chain.clone()
        branch.rewind(back)
        assert _view_of(branch) == [*rows, end][len(tokens) - back]
        for token in tokens[len(tokens) - back :]:
            branch.advance(token)
        assert _view_of(branch) == end == _view_of(chain)


def _view_of(chain: ProcessorChain) -> list[float]:
    view = full_view(np.linspace(-1, 1, V))
    for processor in chain.active():
        processor.process(view)
    return view.values.tolist()


_PARTS: dict[str, Any] = {
    "repetition": {"repetition_penalty": 1.7},
    "raising repetition": {"repetition_penalty": 0.4},
    "counts": {"frequency_penalty": 0.4, "presence_penalty": 0.3},
    "raising counts": {"frequency_penalty": -1.5, "presence_penalty": -0.5},
    "bias": {"logit_bias": {0: 2.5, 3: -1.0, 7: 1.0}},
    "banned": {"banned_token_ids": (2, 6)},
    "allowed": {"allowed_token_ids": (0, 3, 4, 7)},
    "ngram": {"no_repeat_ngram_size": 2},
}


def _chain(parts: dict[str, bool], *, min_tokens: int = 3, forced: int | None = None) -> Any:
    options: dict[str, Any] = {}
    for name, wanted in parts.items():
        if wanted:
            options |= _PARTS[name]
    request = Request(
        prompt_ids=PROMPT,
        logits=LogitParams(**options),
        min_tokens=min_tokens,
        processors=(Force(forced),) if forced is not None else (),
    )
    return build_chain(request, vocab_size=V, end_ids=[5])


class Row:
    """A row on the host that counts how often it was read whole."""

    def __init__(self, row: Any) -> None:
        self._row = row
        self.read = 0

    def full(self) -> Any:
        self.read += 1
        return self._row

    def entries(self, ids: Any) -> Any:
        return self._row[ids]


@settings(max_examples=300, deadline=None)
@given(
    rows=st.lists(st.lists(st.integers(-3, 3), min_size=V, max_size=V), min_size=1, max_size=6),
    parts=st.fixed_dictionaries({name: st.booleans() for name in _PARTS}),
    forced=st.one_of(st.none(), st.integers(0, V - 1)),
    count=st.integers(1, V),
    law=st.builds(
        SamplingLaw,
        temperature=st.sampled_from([0.0, 0.7, 1.5]),
        top_k=st.sampled_from([0, 2, 5]),
        top_p=st.sampled_from([1.0, 0.8]),
        min_p=st.sampled_from([0.0, 0.2]),
        seed=st.integers(0, 9),
    ),
)
def test_candidates_and_the_whole_row_give_the_same_token_under_any_processors(
    rows: list[list[int]],
    parts: dict[str, bool],
    forced: int | None,
    count: int,
    law: SamplingLaw,
) -> None:
    """Small whole numbers: every kind of tie, at rank C and after a change, comes up."""
    samplers = [RowSampler(law, vocab_size=V, chain=_chain(parts, forced=forced)) for _ in range(2)]
    for position, logits in enumerate(rows):
        row = Row(np.array(logits, dtype=np.float32))
        drawn = []
        for sampler, known in zip(samplers, (count, V), strict=True):
            values, ids = top_candidates(row.full(), known)
            try:
                drawn.append(sampler.draw(values, ids, position=position, row=row))
            except ConfigError as error:
                drawn.append(error.problem)
        assert drawn[0] == drawn[1]
        if isinstance(drawn[0], str):
            return
    assert samplers[1].fallbacks == 0, "candidates that are the whole row always decide"


@pytest.mark.parametrize("name", ["banned", "counts", "bias", "allowed", "raising counts"])
def test_penalties_and_small_lists_need_no_whole_row_in_greedy_mode(name: str) -> None:
    rng = np.random.default_rng(0)
    law = SamplingLaw(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, seed=0)
    sampler = RowSampler(law, vocab_size=V, chain=_chain({name: True}, min_tokens=0))
    seen: Counter[int] = Counter()
    for position in range(30):
        row = Row(rng.standard_normal(V) + np.arange(V) / 4)
        values, ids = top_candidates(row.full(), 6)
        row.read = 0
        seen[sampler.draw(values, ids, position=position, row=row)] += 1
        assert row.read == 0 or name == "counts"
    assert len(seen) > 2 or name == "raising counts"


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0"),
        ({"frequency_penalty": 2.5}, "frequency_penalty is 2.5"),
        ({"presence_penalty": "much"}, "presence_penalty is 'much'"),
        ({"logit_bias": {3: 101}}, "logit_bias of token 3 is 101"),
        ({"logit_bias": {3: float("inf")}}, "logit_bias of token 3 is inf"),
        ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size is -1"),
        ({"allowed_token_ids": ()}, "allowed_token_ids is empty"),
        ({"bad_words": ("",)}, "bad_words holds an empty text"),
        (
            {"allowed_token_ids": (1, 2), "banned_token_ids": (2,)},
            "token 2 stands in allowed_token_ids and in banned_token_ids",
        ),
    ],
)
def test_values_out_of_range_or_at_odds_are_refused(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        LogitParams(**options)


def test_bad_words_without_a_tokenizer_are_refused() -> None:
    request = Request(prompt_ids=(1,), logits=LogitParams(bad_words=("no",)))
    with pytest.raises(ConfigError, match="bad_words are texts"):
        build_chain(request, vocab_size=V, end_ids=())
