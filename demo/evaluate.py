"""Measures a checkpoint on held-out chats: `python -m demo.evaluate demo/checkpoint`."""

from __future__ import annotations

import argparse
import json
import random
import re
from collections import defaultdict
from pathlib import Path

import torch

from demo import closed, memory
from demo.chat import Chat
from demo.checkpoint import load_checkpoint
from demo.data import draw_task, heldout_chats
from demo.generate import generate
from demo.render import BUDGETS, THINK_END, Renderer, prompt_text
from demo.runtime_setup import keep_freed_memory
from demo.tokenizer import END_OF_TEXT_ID, IM_END_ID, THINK_CLOSE_ID

NUM_DRAFTS = 4
MAX_REPLY = 100
CLOSED_TASKS = {task.__name__ for task, _ in closed.TASKS} | {"remember", "user_name"}


class Evaluator:
    """A loaded checkpoint and the measurements on it."""

    def __init__(self, folder: Path) -> None:
        self.model, tokenizer = load_checkpoint(folder)
        self.tokenizer = tokenizer
        self.renderer = Renderer(tokenizer)
        self.stop = {IM_END_ID, END_OF_TEXT_ID}

    def prompt(self, chat: Chat, *, budget: int | None = None) -> list[int]:
        """Token ids of everything before the last reply of `chat`."""
        return self.renderer.encode(prompt_text(chat.messages[:-1], thinking_budget=budget))

    def reply(self, prompt: list[int], *, max_tokens: int = MAX_REPLY) -> list[int]:
        """Greedy reply without the stop token."""
        return generate(self.model, prompt, max_tokens=max_tokens, stop=self.stop)

    def text(self, ids: list[int]) -> str:
        """Decoded text."""
        return str(self.tokenizer.decode(ids))

    def is_right(self, chat: Chat, reply: str) -> bool:
        """Whether every key word stands in the reply as a word of its own (case ignored)."""
        return all(
            re.search(rf"(?<!\w){re.escape(word)}(?!\w)", reply, re.IGNORECASE)
            for word in chat.keywords
        )

    @torch.inference_mode()
    def matches(self, prompt: list[int], reply: list[int]) -> list[list[bool]]:
        """For each reply token x[p+1] after the first pass: which of the next drafts are right.

        Row i belongs to the draft step that starts from reply token i; entry d says whether
        draft d equals reply token i+1+d. Rows get shorter at the end of the reply.
        """
        ids = torch.tensor([prompt + reply])
        drafts = self.model(ids, num_drafts=NUM_DRAFTS, recycle_rows=1).drafts
        guesses = [self.model.lm_head(states[0]).argmax(-1) for states in drafts]
        rows = []
        for i in range(len(reply) - 1):
            slot = len(prompt) + i - 1  # pair (h[slot], x[slot+1] = reply[i])
            rows.append([bool(guesses[d][slot] == reply[i + 1 + d])
                         for d in range(min(NUM_DRAFTS, len(reply) - 1 - i))])  # fmt: skip
        return rows


def walk(rows: list[list[bool]], counts: list[int], accepted: list[int]) -> None:
    """Adds the draft steps that real decoding would make: each starts after the last accepted token."""
    i = 0
    while i < len(rows):
        length = 0
        for position, right in enumerate(rows[i]):
            counts[position] += 1
            if not right:
                break
            accepted[position] += 1
            length += 1
        for position in range(min(length + 1, len(rows[i])), len(rows[i])):
            counts[position] += 1  # drafted, but an earlier draft was wrong
        i += length + 1


def acceptance(evaluator: Evaluator, chats: list[Chat]) -> dict[str, object]:
    """Greedy acceptance by draft position (unconditional) with 4 drafts a step, closed score, variety."""
    counts, accepted = [0] * NUM_DRAFTS, [0] * NUM_DRAFTS
    right: dict[str, list[bool]] = defaultdict(list)
    first: list[bool] = []
    wrong, tokens = [], set()
    for chat in chats:
        prompt = evaluator.prompt(chat)
        reply = evaluator.reply(prompt)
        rows = evaluator.matches(prompt, reply if len(reply) == MAX_REPLY else [*reply, IM_END_ID])
        first += [row[0] for row in rows]
        tokens.update(reply)
        walk(rows, counts, accepted)
        if chat.task in CLOSED_TASKS:
            right[chat.task].append(evaluator.is_right(chat, evaluator.text(reply)))
            if not right[chat.task][-1]:
                wrong.append((chat.messages[-2]["content"][-90:], evaluator.text(reply)))
    answers = [value for values in right.values() for value in values]
    return {
        "first_draft_any_slot": round(sum(first) / len(first), 4),
        "by_position": [round(a / c, 4) for a, c in zip(accepted, counts, strict=True)],
        "tokens_per_step_4_drafts": round(1 + sum(accepted) / counts[0], 3),
        "drafts_measured": counts[0],
        "distinct_tokens": len(tokens),
        "closed_score": f"{sum(answers)}/{len(answers)}",
        "closed_by_task": {task: f"{sum(v)}/{len(v)}" for task, v in sorted(right.items())},
        "wrong": wrong[:12],
    }


def needle_score(evaluator: Evaluator, *, length: int, number: int, seed: int) -> str:
    """Share of needle questions answered right in texts of about `length` tokens (4 facts, 1 question)."""
    rng = random.Random(f"needle-{seed}-{length}")
    right, sizes = 0, []
    for _ in range(number):
        chat = draw_task(rng, lambda r: memory.needle(r, max_chars=int(length * 3.9), num_facts=4,
                                                      num_questions=1), heldout=True)  # fmt: skip
        prompt = evaluator.prompt(chat)
        sizes.append(len(prompt))
        right += evaluator.is_right(chat, evaluator.text(evaluator.reply(prompt, max_tokens=24)))
    return f"{right}/{number} (prompt tokens {min(sizes)}-{max(sizes)})"


def thinking_score(
    evaluator: Evaluator, *, budget: int, number: int, seed: int
) -> dict[str, object]:
    """Thinking length against `budget`, and answers after natural and forced ends."""
    rng = random.Random(f"thinking-{seed}-{budget}")
    lengths, right, right_cut = [], 0, 0
    end = evaluator.renderer.encode(THINK_END)
    for _ in range(number):
        chat = draw_task(rng, rng.choice([task for task, _ in closed.TASKS]), heldout=True)
        prompt = evaluator.prompt(chat, budget=budget)
        thought = generate(
            evaluator.model,
            prompt,
            max_tokens=2 * budget + 16,
            stop={THINK_CLOSE_ID, *evaluator.stop},
        )
        lengths.append(len(thought))
        answer = evaluator.reply(
            [*prompt, *thought[:budget], THINK_CLOSE_ID, *evaluator.renderer.encode("\n\n")]
        )
        right += evaluator.is_right(chat, evaluator.text(answer))
        answer = evaluator.reply([*prompt, *thought[: budget // 2], *end])
        right_cut += evaluator.is_right(chat, evaluator.text(answer))
    within = sum(length <= budget for length in lengths)
    used = sum(budget / 2 <= length <= budget for length in lengths)
    return {"budget": budget, "within": f"{within}/{number}", "half_to_full": f"{used}/{number}",
            "mean_tokens": round(sum(lengths) / number, 1), "right": f"{right}/{number}",
            "right_when_cut_at_half": f"{right_cut}/{number}"}  # fmt: skip


def main() -> None:
    """Command line: prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--num", type=int, default=200, help="held-out chats for acceptance")
    parser.add_argument("--needles", type=int, default=32)
    parser.add_argument("--thinking", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(args.threads)
    evaluator = Evaluator(args.folder)
    report: dict[str, object] = {
        "seed": args.seed,
        "acceptance": acceptance(evaluator, list(heldout_chats(args.seed, args.num))),
    }
    if args.needles:
        report["needle"] = {length: needle_score(evaluator, length=length, number=args.needles, seed=args.seed)
                            for length in (512, 1024, 2048)}  # fmt: skip
    if args.thinking:
        report["thinking"] = [thinking_score(evaluator, budget=budget, number=args.thinking, seed=args.seed)
                              for budget in BUDGETS]  # fmt: skip
    print(json.dumps(report, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
