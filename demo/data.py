"""The data mix: `python -m demo.data --split heldout --num 20` prints chats as JSON lines."""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from demo import closed, free, memory, words
from demo.chat import Chat, Generator, Rng, is_heldout
from demo.render import GENERAL_THOUGHTS, Renderer, add_thinking

CHAT_TASKS = closed.TASKS + free.TASKS
MAX_CHAT_TURNS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """Shares of the training text.

    `shares` are those of documents by kind, `boosts` multiply the weights of single tasks,
    `thinking` is the share of chats that think, and `long_needles` that of rows which start with a
    needle text that fills most of them.
    """

    shares: dict[str, float]
    boosts: dict[str, float] = field(default_factory=dict)
    thinking: float
    long_needles: float = 0.0


BASE_MIX = Mix(shares={"chat": 0.66, "memory": 0.22, "needle": 0.12}, thinking=0.3)
POLISH_MIX = Mix(
    shares={"chat": 0.74, "memory": 0.14, "needle": 0.12},
    boosts={
        "opposite": 3.0,
        "neighbour": 3.5,
        "spell": 4.0,
        "board": 4.0,
        "count": 2.0,
        "pick": 3.0,
    },
    thinking=0.45,
    long_needles=0.5,
)


def _choose(rng: Rng, tasks: list[tuple[Generator, float]], mix: Mix = BASE_MIX) -> Generator:
    weights = [weight * mix.boosts.get(task.__name__, 1.0) for task, weight in tasks]
    return rng.choices([task for task, _ in tasks], weights)[0]


def draw_task(rng: Rng, generator: Generator, *, heldout: bool = False) -> Chat:
    """A chat of one task that belongs to the asked split."""
    while True:
        chat = generator(rng)
        if is_heldout(chat.key) == heldout:
            return chat


def draw_chat(rng: Rng, *, heldout: bool = False, mix: Mix = BASE_MIX) -> Chat:
    """One to three unrelated questions in a row; labels are those of the last."""
    parts = [draw_task(rng, _choose(rng, CHAT_TASKS, mix), heldout=heldout)
             for _ in range(rng.choice([1, 1, 1, 2, MAX_CHAT_TURNS]))]  # fmt: skip
    last = parts[-1]
    last.messages = [message for part in parts for message in part.messages]
    return last


def draw_document(
    rng: Rng, *, heldout: bool = False, max_chars: int = 900, mix: Mix = BASE_MIX
) -> Chat:
    """A chat of the training mix; needle texts have at most `max_chars` characters."""
    kind = rng.choices(list(mix.shares), list(mix.shares.values()))[0]
    if kind == "chat":
        return draw_chat(rng, heldout=heldout, mix=mix)
    if kind == "memory":
        return draw_task(rng, _choose(rng, memory.TASKS), heldout=heldout)
    size = rng.randint(150, max_chars)
    return draw_task(rng, lambda r: memory.needle(r, max_chars=size), heldout=heldout)


def copy_row(rng: Rng, renderer: Renderer, length: int) -> tuple[list[int], list[float]]:
    """A row of random words that repeats; only the repetitions count. Both lists `[length]`."""
    pool = words.SECRETS + words.NAMES + words.CITIES + words.OBJECTS + words.JOBS
    size = rng.randint(8, 40)
    parts = [
        rng.choice(pool) if rng.random() < 0.7 else str(rng.randint(0, 9999)) for _ in range(size)
    ]
    ids = renderer.encode(" " + " ".join(parts))
    repeats = length // len(ids) + 1
    weights = [0.0] * len(ids) + [0.5] * (len(ids) * repeats)
    return (ids * (repeats + 1))[:length], weights[:length]


def _row_document(
    rng: Rng, room: int, length: int, *, first: bool, heldout: bool, mix: Mix
) -> Chat:
    """The next document of a row of `length` tokens that has `room` tokens left."""
    room_chars = int(room * 3.7)
    if first and mix.long_needles and rng.random() < mix.long_needles:
        size = rng.randint(room_chars // 3, room_chars)
        return draw_task(rng, lambda r: memory.needle(r, max_chars=size), heldout=heldout)
    max_chars = max(room_chars - 300, 200) if rng.random() < 0.5 or length <= 512 else 900
    return draw_document(rng, heldout=heldout, max_chars=max_chars, mix=mix)


def pack_row(
    rng: Rng, renderer: Renderer, length: int, *, heldout: bool = False, mix: Mix = BASE_MIX
) -> tuple[list[int], list[float]]:
    """Documents one after the other until the row is full; the last one is cut. Both `[length]`."""
    ids: list[int] = []
    weights: list[float] = []
    while len(ids) < length:
        room = length - len(ids)
        chat = _row_document(rng, room, length, first=not ids, heldout=heldout, mix=mix)
        if chat.task != "needle" and rng.random() < mix.thinking:
            add_thinking(rng, chat, renderer.count)
        new_ids, new_weights = renderer.render(rng, chat)
        ids += new_ids
        weights += new_weights
    return ids[:length], weights[:length]


def texts(seed: int, number: int) -> Iterator[str]:
    """Plain texts of the mix, for the tokenizer and for token counts."""
    rng = random.Random(seed)
    for _ in range(number):
        chat = draw_document(rng)
        budget_line = f"Thinking budget: {rng.randint(4, 64)} tokens."
        extra = [*chat.thoughts[:2], *chat.cores, *rng.choice(GENERAL_THOUGHTS)]
        yield "\n".join([message["content"] for message in chat.messages] + extra + [budget_line])


def heldout_chats(seed: int, number: int) -> Iterator[Chat]:
    """Single-question chats of held-out combinations, with labels."""
    rng = random.Random(f"heldout-{seed}")
    tasks = [(task, weight) for task, weight in CHAT_TASKS + memory.TASKS]
    for _ in range(number):
        yield draw_task(rng, _choose(rng, tasks), heldout=True)


def main() -> None:
    """Prints chats of a split, one JSON object a line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--split", choices=["train", "heldout"], default="heldout")
    parser.add_argument("--num", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.split == "heldout":
        chats = heldout_chats(args.seed, args.num)
    else:
        rng = random.Random(args.seed)
        chats = (draw_document(rng) for _ in range(args.num))
    for chat in chats:
        print(json.dumps({"task": chat.task, "messages": chat.messages[:-1],
                          "reference": chat.messages[-1]["content"], "keywords": chat.keywords}))  # fmt: skip


if __name__ == "__main__":
    main()
