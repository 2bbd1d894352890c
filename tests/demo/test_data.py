"""The text generators."""

import json
import random

import pytest

from demo import closed, data, free, memory
from demo.chat import is_heldout
from demo.prompts import showcase
from demo.render import Renderer, compose_thinking
from demo.tokenizer import train_tokenizer

from .paths import DEMO

ALL_TASKS = [task for task, _ in closed.TASKS + free.TASKS + memory.TASKS] + [memory.needle]


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(train_tokenizer(data.texts(1, 2000)))


@pytest.mark.parametrize("task", ALL_TASKS, ids=lambda task: task.__name__)
def test_every_task_alternates_turns_and_answers_with_its_key_words(task) -> None:
    rng = random.Random(5)
    for _ in range(150):
        chat = task(rng)
        roles = [message["role"] for message in chat.messages]
        assert roles == ["user", "assistant"] * (len(roles) // 2)
        reply = chat.messages[-1]["content"]
        assert reply and "{" not in reply
        if task.__name__ not in {"concept"}:
            assert all(word.lower() in reply.lower() for word in chat.keywords), (
                chat.keywords,
                reply,
            )


def test_splits_do_not_share_a_combination() -> None:
    rng = random.Random(1)
    assert not any(is_heldout(data.draw_task(rng, closed.capital).key) for _ in range(200))
    assert all(is_heldout(chat.key) for chat in data.heldout_chats(3, 50))


def test_same_seed_gives_the_same_rows(renderer: Renderer) -> None:
    first = data.pack_row(random.Random(9), renderer, 512)
    assert first == data.pack_row(random.Random(9), renderer, 512)
    assert len(first[0]) == len(first[1]) == 512


@pytest.mark.parametrize("budget", [4, 8, 16, 32, 64])
def test_thinking_fills_but_never_exceeds_its_budget(renderer: Renderer, budget: int) -> None:
    rng = random.Random(budget)
    sizes = []
    for _ in range(100):
        text = compose_thinking(rng, data.draw_chat(rng), budget, renderer.count)
        sizes.append(len(renderer.encode(text + "\n")))
    assert max(sizes) <= budget
    assert sum(sizes) / len(sizes) > 0.5 * budget


def test_stored_prompts_are_those_of_the_script() -> None:
    assert json.loads((DEMO / "prompts.json").read_text()) == showcase()
    assert len(showcase()) >= 24
