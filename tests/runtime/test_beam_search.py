"""Beam search against brute force, and against one that computes every beam from scratch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from selfdraft.errors import ConfigError, ResourceError
from selfdraft.manifest import capacity_for
from selfdraft.runtime.backend import Step
from selfdraft.runtime.beam_search import BeamOptions, FinishedBeam, beam_search
from selfdraft.runtime.generation import generate

PROMPT = (1, 3, 2, 0)
END = 2
ENDS = (3, 25, 19)
NextLogProbs = Callable[[Sequence[int]], list[float]]


@pytest.fixture(scope="module")
def rounding(engine: str) -> float:
    """Most that a score may differ by: the reference computes in fp64, engines in fp32."""
    return 1e-9 if engine == "reference" else 1e-5


@pytest.fixture(scope="module")
def toy(tiny: ModuleType) -> Any:
    """Four tokens, of which one ends the reply."""
    return tiny.backend(tiny.model_spec(vocab_size=4), seed=3, eos_ids=(END,))


@pytest.fixture(scope="module")
def wide(tiny: ModuleType) -> Any:
    """Vocabulary 64, with end tokens that it likes."""
    return tiny.backend(seed=5, eos_ids=ENDS)


def log_probs_of(backend: Any) -> NextLogProbs:
    """Log-probabilities after a sequence, computed in one pass over all of it."""
    known: dict[tuple[int, ...], list[float]] = {}

    def log_probs(tokens: Sequence[int]) -> list[float]:
        key = tuple(tokens)
        if key not in known:
            states = backend.allocate(batch=1, capacity=capacity_for(len(key)))
            one = np.array([len(key)])
            step = Step(
                past_len=one * 0,
                row_count=one,
                attend_all=np.array([1]),
                row_index=np.array([[len(key) - 1]]),
            )
            output = backend.run_backbone(states, step, np.array([key]))
            row = backend.read_rows(output.logits, [(0, 0)])[0]
            known[key] = list(row - np.logaddexp.reduce(row))
        return known[key]

    return log_probs


def every_sequence(log_probs: NextLogProbs, length: int) -> list[tuple[tuple[int, ...], float]]:
    """All continuations that end in END or at ``length`` tokens, with their log-probabilities."""
    found = []
    for count in range(1, length + 1):
        for tokens in itertools.product(range(4), repeat=count):
            if END in tokens[:-1] or (count < length and tokens[-1] != END):
                continue
            steps = (log_probs([*PROMPT, *tokens[:i]])[t] for i, t in enumerate(tokens))
            found.append((tokens, sum(steps)))
    return found


@pytest.mark.parametrize("length_penalty", [-1.0, 0.0, 1.0, 2.5])
def test_beam_as_wide_as_the_tree_finds_the_best_sequences_of_all(
    toy: Any, rounding: float, length_penalty: float
) -> None:
    options = BeamOptions(num_beams=64, length_penalty=length_penalty, early_stopping="never")
    result = beam_search(toy, PROMPT, options, max_tokens=4)
    scored = [
        (score / len(tokens) ** length_penalty, tokens)
        for tokens, score in every_sequence(log_probs_of(toy), 4)
    ]
    best = sorted(scored, reverse=True)[:20]
    assert [beam.tokens for beam in result.beams[:20]] == [tokens for _, tokens in best]
    np.testing.assert_allclose(
        [beam.score for beam in result.beams[:20]], [score for score, _ in best], atol=rounding
    )
    assert len({len(tokens) for _, tokens in best}) > 1, "all of one length prove no penalty"


def plain_search(
    log_probs: NextLogProbs, ends: set[int], options: BeamOptions, max_tokens: int
) -> list[tuple[float, tuple[int, ...]]]:
    """The rules written down a second time, without caches, slots or arrays."""
    width, penalty = options.num_beams, options.length_penalty
    running: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    finished: list[tuple[float, tuple[int, ...]]] = []
    for length in range(1, max_tokens + 1):
        following = [
            (score + step, (*tokens, token))
            for score, tokens in running
            for token, step in enumerate(log_probs([*PROMPT, *tokens]))
        ]
        following.sort(key=lambda entry: -entry[0])
        following = following[: (1 + len(ends)) * width]
        ending = [(s, t) for s, t in following if t[-1] in ends or length == max_tokens]
        running = [entry for entry in following if entry not in ending][:width]
        finished += [(s / length**penalty, t) for s, t in following[:width] if (s, t) in ending]
        finished = sorted(finished, key=lambda entry: -entry[0])[:width]
        if not running or len(finished) < width:
            continue
        horizon = length
        if options.early_stopping == "never" and penalty > 0:
            horizon = max_tokens
        if options.early_stopping is True or running[0][0] / horizon**penalty <= finished[-1][0]:
            break
    return finished


@pytest.mark.parametrize("early_stopping", [False, True, "never"])
@pytest.mark.parametrize("length_penalty", [-0.5, 1.0, 2.0])
def test_search_equals_one_that_computes_every_beam_from_scratch(
    wide: Any, rounding: float, early_stopping: Any, length_penalty: float
) -> None:
    log_probs = log_probs_of(wide)
    lengths = set()
    for num_beams in (2, 5):
        options = BeamOptions(
            num_beams=num_beams, length_penalty=length_penalty, early_stopping=early_stopping
        )
        found = beam_search(wide, PROMPT, options, max_tokens=16)
        wanted = plain_search(log_probs, set(ENDS), options, 16)
        assert [beam.tokens for beam in found.beams] == [tokens for _, tokens in wanted]
        np.testing.assert_allclose(
            [beam.score for beam in found.beams], [score for score, _ in wanted], atol=rounding
        )
        lengths |= {len(beam.tokens) for beam in found.beams}
    assert len(lengths) > 1 or length_penalty > 1, "nothing ended"


def test_when_to_stop_is_a_setting(wide: Any) -> None:
    steps = []
    for early_stopping in (True, False, "never"):
        options = BeamOptions(num_beams=3, early_stopping=early_stopping)
        steps.append(beam_search(wide, PROMPT, options, max_tokens=20).steps)
    assert steps[0] < steps[1] < steps[2] == 19


def test_one_beam_is_greedy_decoding(wide: Any) -> None:
    result = beam_search(wide, PROMPT, BeamOptions(num_beams=1), max_tokens=12)
    plain = [event.token for event in generate(wide, PROMPT, max_tokens=12, drafts=0)]
    assert list(result.beams[0].tokens) == plain


def test_sparse_layers_are_searched_as_a_decode_step_reads_them(
    sparse_model: ModuleType, tiny: ModuleType
) -> None:
    backend = sparse_model.backend(tiny)
    prompt = tuple(int(t) for t in np.random.default_rng(0).integers(1, 60, size=400))
    result = beam_search(backend, prompt, BeamOptions(num_beams=1), max_tokens=8)
    plain = [event.token for event in generate(backend, prompt, max_tokens=8, drafts=0)]
    assert list(result.beams[0].tokens) == plain


def ends(backend: Any, **options: Any) -> list[FinishedBeam]:
    return list(beam_search(backend, PROMPT, BeamOptions(num_beams=3), **options).beams)


def test_reason_of_the_end_is_told(wide: Any) -> None:
    found = [
        *ends(wide, max_tokens=6),
        *ends(wide, context_length=len(PROMPT) + 6),
        *ends(wide, max_tokens=6, stop_ids=[58]),
    ]
    for beam in found:
        assert not set(beam.tokens[:-1]) & set(ENDS)
        if beam.tokens[-1] in ENDS:
            assert beam.finish_reason == "eos"
        elif beam.finish_reason == "stop":
            assert beam.tokens.index(58) == len(beam.tokens) - 1
        else:
            assert len(beam.tokens) == 6
    reasons = [{beam.finish_reason for beam in found[i : i + 3]} for i in (0, 3, 6)]
    assert reasons == [{"eos", "length"}, {"eos", "context"}, {"eos", "stop"}]


@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 0},
        {"num_beams": 65},
        {"num_beams": 2, "length_penalty": float("nan")},
        {"num_beams": 2, "early_stopping": "always"},
    ],
    ids=str,
)
def test_settings_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=list(options)[-1]):
        BeamOptions(**options)


@pytest.mark.parametrize(
    ("prompt", "options", "error", "match"),
    [
        ((), {}, ConfigError, "empty"),
        ((64,), {}, ConfigError, "token 64 is outside"),
        (PROMPT, {"max_tokens": 0}, ConfigError, "max_tokens is 0"),
        (PROMPT, {"context_length": 257}, ConfigError, "context_length is 257"),
        (PROMPT, {"context_length": 4}, ResourceError, "4 tokens, the context holds 4"),
    ],
)
def test_impossible_requests_are_refused(
    wide: Any,
    prompt: tuple[int, ...],
    options: dict[str, Any],
    error: type[Exception],
    match: str,
) -> None:
    with pytest.raises(error, match=match):
        beam_search(wide, prompt, BeamOptions(num_beams=2), **options)
