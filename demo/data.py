"""The data mix: `python -m demo.data --split heldout --num 20` prints chats as JSON lines."""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator

from demo import closed, free, memory, words
from demo.chat import Chat, Generator, Rng, is_heldout
from demo.render import GENERAL_THOUGHTS, Renderer, add_thinking

CHAT_TASKS = closed.TASKS + free.TASKS
SHARES = {"chat": 0.66, "memory": 0.22, "needle": 0.12}
THINKING_SHARE = 0.3
MAX_CHAT_TURNS = 3


def _choose(rng: Rng, tasks: list[tuple[Generator, float]]) -> Generator:
    return rng.choices([task for task, _ in tasks], [weight for _, weight in tasks])[0]


def draw_task(rng: Rng, generator: Generator, *, heldout: bool = False) -> Chat:
    """A chat of one task that belongs to the asked split."""
    while True:
        chat = generator(rng)
        if is_heldout(chat.key) == heldout:
            return chat


def draw_chat(rng: Rng, *, heldout: bool = False) -> Chat:
    """One to three unrelated questions in a row; labels are those of the last."""
    parts = [draw_task(rng, _choose(rng, CHAT_TASKS), heldout=heldout)
             for _ in range(rng.choice([1, 1, 1, 2, MAX_CHAT_TURNS]))]  # fmt: skip
    last = parts[-1]
    last.messages = [message for part in parts for message in part.messages]
    return last


def draw_document(rng: Rng, *, heldout: bool = False, max_chars: int = 900) -> Chat:
    """A chat of the training mix; needle texts have at most `max_chars` characters."""
    kind = rng.choices(list(SHARES), list(SHARES.values()))[0]
    if kind == "chat":
        return draw_chat(rng, heldout=heldout)
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


def pack_row(
    rng: Rng, renderer: Renderer, length: int, *, heldout: bool = False
) -> tuple[list[int], list[float]]:
    """Documents one after the other until the row is full; the last one is cut. Both `[length]`."""
    ids: list[int] = []
    weights: list[float] = []
    while len(ids) < length:
        room_chars = int((length - len(ids)) * 3.7)
        max_chars = max(room_chars - 300, 200) if rng.random() < 0.5 or length <= 512 else 900
        chat = draw_document(rng, heldout=heldout, max_chars=max_chars)
        if chat.task != "needle" and rng.random() < THINKING_SHARE:
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
