"""Hybrid models in the loop: how far back a slot can go, and that nothing else tells of the drafts."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from support.hybrid import right_now_and_then, tiny_hybrid

from selfdraft.errors import BundleError
from selfdraft.recurrent import MAX_ROLLBACK_ROWS, STATE_LEN
from selfdraft.runtime.adaptive.measure import MEASURED_AT, joint_drafts, measure_costs
from selfdraft.runtime.beam_search import BeamOptions, beam_search
from selfdraft.runtime.cache_file import load_cache, save_cache
from selfdraft.runtime.generation import generate
from selfdraft.runtime.loop import DecodeLoop
from selfdraft.runtime.loop_options import MAX_DRAFTS
from selfdraft.runtime.request import Request
from selfdraft.runtime.sampling import SamplingParams

PROMPT = tuple(np.random.default_rng(6).integers(1, 64, size=37).tolist())
QUESTION = (5, 41, 7)


@pytest.fixture(scope="module")
def hybrid(tiny: ModuleType) -> Any:
    """Two gated delta nets around one layer that attends."""
    return tiny_hybrid(tiny, candidates=8)


def plain(backend: Any, prompt: tuple[int, ...], count: int, temperature: float = 0.0) -> list[int]:
    params = SamplingParams(temperature=temperature, seed=3)
    made = generate(backend, prompt, params, max_tokens=count, drafts=0)
    return [event.token for event in made]


def turn(loop: DecodeLoop, prompt: tuple[int, ...], *, count: int = 12) -> Any:
    loop.begin({0: Request(prompt_ids=prompt, max_tokens=count)})
    while loop.active:
        loop.step()
    return loop.result(0)


def test_most_drafts_of_a_step_can_be_taken_back() -> None:
    assert MAX_DRAFTS + 1 <= MAX_ROLLBACK_ROWS


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_speculative_equals_plain_for_every_depth_and_chunk(hybrid, batch, temperature) -> None:
    prompts = [PROMPT, PROMPT[:1], PROMPT[5:26]][:batch]
    expected = [plain(hybrid, prompt, 20, temperature) for prompt in prompts]
    params = SamplingParams(temperature=temperature, seed=3)
    for drafts, chunk in ((1, 1), (2, 5), (3, 64), (4, 256), (8, 5)):
        loop = DecodeLoop(hybrid, batch=batch, drafts=drafts, prefill_rows=min(chunk, 256))
        told: list[list[int]] = [[] for _ in prompts]
        right_now_and_then(loop, lambda slot, told=told: expected[slot][len(told[slot]) :])
        requests = {
            slot: Request(prompt_ids=prompt, sampling=params, max_tokens=20)
            for slot, prompt in enumerate(prompts)
        }
        events = loop.begin(requests)
        while True:
            for event in events:
                told[event.slot].append(event.token)
            if not loop.active:
                break
            events = loop.step()
        assert told == expected, f"K = {drafts}, chunks of {chunk}"
        accepted = sum(sum(loop.result(slot).accepted) for slot in requests)
        drafted = sum(sum(loop.result(slot).drafted) for slot in requests)
        assert 0.2 < accepted / drafted < 0.9


@pytest.mark.parametrize("drafts", [0, 2])
def test_next_turn_keeps_what_came_before_it(hybrid, drafts) -> None:
    loop = DecodeLoop(hybrid, drafts=drafts)
    first = turn(loop, PROMPT)
    prompt = (*PROMPT, *first.tokens, *QUESTION)
    second = turn(loop, prompt)
    assert second.reused_tokens >= len(PROMPT) + len(first.tokens) - 3
    assert list(second.tokens) == plain(hybrid, prompt, 12)


@pytest.mark.parametrize("drafts", [0, 2])
@pytest.mark.parametrize("kept", [3, 20, 36])
def test_prompt_that_branches_off_before_the_state_is_computed_from_its_start(
    hybrid, drafts, kept
) -> None:
    loop = DecodeLoop(hybrid, drafts=drafts)
    turn(loop, PROMPT)
    prompt = (*PROMPT[:kept], *QUESTION)
    result = turn(loop, prompt)
    assert result.reused_tokens == 0
    assert list(result.tokens) == plain(hybrid, prompt, 12)


def test_prompt_that_ends_within_the_log_goes_on_from_it(hybrid) -> None:
    loop = DecodeLoop(hybrid, drafts=0)
    first = turn(loop, PROMPT, count=4)
    prompt = (*PROMPT, *first.tokens[:1], 9)
    second = turn(loop, prompt)
    assert second.reused_tokens == len(prompt) - 1
    assert list(second.tokens) == plain(hybrid, prompt, 12)


@pytest.mark.parametrize(("kept", "reused"), [(23, 0), (24, 24), (30, 30)])
def test_what_a_prefill_leaves_within_reach_is_used_again(hybrid, kept, reused) -> None:
    """37 tokens in one chunk: 16 rows of log end at 40, a whole block, so that the state lies at 24."""
    loop = DecodeLoop(hybrid, drafts=0, prefill_rows=64)
    turn(loop, PROMPT, count=1)
    prompt = (*PROMPT[:kept], *QUESTION)
    result = turn(loop, prompt)
    assert result.reused_tokens == reused
    assert list(result.tokens) == plain(hybrid, prompt, 12)


@pytest.mark.parametrize("delivered", [2, 9])
def test_cut_request_goes_on_as_if_it_had_never_run_further(hybrid, delivered) -> None:
    loop = DecodeLoop(hybrid, batch=2, drafts=3)
    expected = plain(hybrid, PROMPT, 20)
    tokens = [e.token for e in loop.begin({0: Request(prompt_ids=PROMPT, max_tokens=20)})]
    while len(tokens) < delivered:
        tokens += [event.token for event in loop.step()]
    loop.begin({1: Request(prompt_ids=PROMPT[:9], max_tokens=30)})
    for _ in range(4):
        loop.step()
    loop.cut(0, delivered)
    resumed = Request(
        prompt_ids=PROMPT, resumed_token_ids=tuple(expected[:delivered]), max_tokens=20
    )
    told = [e.token for e in loop.begin({0: resumed}) if e.slot == 0]
    while 0 in loop.active:
        told += [event.token for event in loop.step() if event.slot == 0]
    assert told[: 20 - delivered] == expected[delivered:]


@pytest.mark.parametrize("drafts", [0, 2])
@pytest.mark.parametrize("length", [6, 44])
def test_prefix_of_another_slot_is_taken_over_where_its_states_reach(
    hybrid, drafts, length
) -> None:
    loop = DecodeLoop(hybrid, batch=2, drafts=drafts)
    first = turn(loop, PROMPT)
    whole = (*PROMPT, *first.tokens)
    loop.copy_prefix(0, 1, length)
    prompt = (*whole[:length], *QUESTION)
    loop.begin({1: Request(prompt_ids=prompt, max_tokens=12)})
    while loop.active:
        loop.step()
    result = loop.result(1)
    assert (result.reused_tokens > 0) == (length > 40)
    assert list(result.tokens) == plain(hybrid, prompt, 12)
    again = turn(loop, (*whole, *QUESTION))
    assert list(again.tokens) == plain(hybrid, (*whole, *QUESTION), 12)


def test_copied_prefix_goes_back_no_further_than_its_source(hybrid) -> None:
    loop = DecodeLoop(hybrid, batch=2, drafts=0)
    turn(loop, PROMPT)
    loop.copy_prefix(0, 1, 44)
    prompt = (*PROMPT[:20], *QUESTION)
    loop.begin({1: Request(prompt_ids=prompt, max_tokens=12)})
    while loop.active:
        loop.step()
    assert loop.result(1).reused_tokens == 0
    assert list(loop.result(1).tokens) == plain(hybrid, prompt, 12)


@pytest.mark.parametrize("drafts", [0, 2])
def test_saved_cache_goes_on_where_it_was(hybrid, tmp_path: Path, drafts) -> None:
    loop = DecodeLoop(hybrid, drafts=drafts)
    first = turn(loop, PROMPT)
    save_cache(tmp_path / "c", loop.slot_cache(0), hybrid.manifest)
    other = DecodeLoop(hybrid, drafts=drafts)
    other.restore(0, load_cache(tmp_path / "c", hybrid.manifest).slot)
    prompt = (*PROMPT, *first.tokens, *QUESTION)
    here, there = turn(loop, prompt), turn(other, prompt)
    assert there.tokens == here.tokens and there.reused_tokens == here.reused_tokens > 40
    branched = (*PROMPT[:4], *QUESTION)
    assert list(turn(other, branched).tokens) == plain(hybrid, branched, 12)
    third = DecodeLoop(hybrid, drafts=drafts)
    third.restore(0, load_cache(tmp_path / "c", hybrid.manifest).slot)
    assert turn(third, branched).reused_tokens == 0
    assert list(third.result(0).tokens) == plain(hybrid, branched, 12)


def test_saved_cache_with_an_impossible_state_is_refused(hybrid, tmp_path: Path) -> None:
    loop = DecodeLoop(hybrid, drafts=0)
    turn(loop, PROMPT)
    cache = loop.slot_cache(0)
    other = DecodeLoop(hybrid, drafts=0)
    held = turn(other, PROMPT[:9]).tokens
    cache.arrays[STATE_LEN][...] = 8
    with pytest.raises(BundleError, match="recurrent states of 8 tokens"):
        other.restore(0, cache)
    assert list(other.tokens(0)) == [*PROMPT[:9], *held], "refused before anything changes"


def test_saved_cache_of_a_slot_cut_before_its_states_holds_no_rows(hybrid) -> None:
    loop = DecodeLoop(hybrid, drafts=3)
    turn(loop, PROMPT, count=20)
    loop.cut(0, 1)
    cache = loop.slot_cache(0)
    assert (cache.cached, cache.drafter_cached, cache.prompt_rows) == (0, 0, 0)
    assert cache.tokens[: len(PROMPT)] == PROMPT
    other = DecodeLoop(hybrid, drafts=3)
    other.restore(0, cache)
    assert list(turn(other, PROMPT).tokens) == plain(hybrid, PROMPT, 12)


def test_states_of_a_pass_that_broke_off_are_not_used_again(hybrid, monkeypatch) -> None:
    loop = DecodeLoop(hybrid, drafts=0)
    first = turn(loop, PROMPT)
    prompt = (*PROMPT, *first.tokens, *QUESTION)
    if hybrid.name == "tensorrt":
        from support.trt_double.execution import FakeContext

        broken: tuple[type, str] = (FakeContext, "execute_async_v3")
    else:  # the first layer has moved on when it fails; the one behind it has not
        broken = (type(hybrid._layers[0]), "finish")
    monkeypatch.setattr(*broken, lambda *_: (_ for _ in ()).throw(MemoryError()))
    with pytest.raises(MemoryError):
        turn(loop, prompt)
    monkeypatch.undo()
    other = DecodeLoop(hybrid, drafts=0)
    other.restore(0, loop.slot_cache(0))
    for again in (other, loop):
        assert turn(again, prompt).reused_tokens == 0
        assert list(again.result(0).tokens) == plain(hybrid, prompt, 12)


def test_beams_that_fork_take_their_recurrent_states_along(hybrid) -> None:
    options = BeamOptions(num_beams=3)
    found = beam_search(hybrid, PROMPT, options, max_tokens=6)
    for beam in found.beams:
        states = hybrid.allocate(batch=1, capacity=128)
        ids = np.array([[*PROMPT, *beam.tokens]])
        assert beam.score == pytest.approx(score_of(hybrid, states, ids, len(beam.tokens)))


def score_of(backend: Any, states: Any, ids: Any, count: int) -> float:
    """Mean log-probability of the last ``count`` tokens, in one pass over all of them."""
    from selfdraft.runtime.backend import Step

    length = ids.shape[1]
    one = np.ones(1, dtype=np.int64)
    index = np.arange(length - count - 1, length - 1)[None]
    step = Step(past_len=one * 0, row_count=one * length, attend_all=one, row_index=index)
    logits = backend.run_backbone(states, step, ids).logits
    rows = backend.read_rows(logits, [(0, row) for row in range(count)])
    chances = rows - np.logaddexp.reduce(rows, axis=-1, keepdims=True)
    return float(chances[np.arange(count), ids[0, -count:]].sum() / count)


class LengthsSeen:
    """A backend that notes where recurrent states lie when a pass begins."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.seen: list[tuple[int, set[int]]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def run_backbone(self, states: Any, step: Any, ids: Any) -> Any:
        self.seen.append(
            (ids.shape[1], {self._reached(states, slot) for slot in range(states.batch)})
        )
        return self._inner.run_backbone(states, step, ids)

    def _reached(self, states: Any, slot: int) -> int:
        lengths = dict.fromkeys(("backbone", "mtp"), MEASURED_AT)
        arrays = self._inner.export_states(states, slot=slot, lengths=lengths)
        return int(arrays[STATE_LEN].item())


@pytest.mark.parametrize("batch", [1, 2])
def test_costs_of_steps_are_measured_at_a_length_that_the_states_have(
    hybrid: Any, batch: int
) -> None:
    """Drafts that nobody numbers are numbered by costs; steps of 9 rows, and of 32 to keep up."""
    backend: Any = LengthsSeen(hybrid)
    assert measure_costs(backend, batch=batch, most=MAX_DRAFTS).of(MAX_DRAFTS) > 0
    joint_drafts(backend, batch=batch, most=2)
    rows, lengths = zip(*backend.seen, strict=True)
    assert {1, 2, 3, MAX_ROLLBACK_ROWS, 32} <= set(rows)
    assert set().union(*lengths) == {MEASURED_AT}
