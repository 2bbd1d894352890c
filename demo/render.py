"""Turns a `Chat` into token ids and loss weights, in the format of `chat_template.jinja`."""

from __future__ import annotations

from collections.abc import Callable

from tokenizers import Tokenizer

from demo.chat import Chat, Rng

BUDGETS = [4, 8, 16, 32, 64]
THINK_END = "\n</think>\n\n"
EMPTY_THINK = "<think>\n\n</think>\n\n"
SYSTEM_PROMPTS = ["You are a helpful assistant.", "You are a small demo model.", "Answer briefly.",
                  "Be friendly and short."]  # fmt: skip
# one of each group, in this order, when the budget leaves room after the chat's own thoughts
GENERAL_THOUGHTS = [
    ("The question is clear.", "I understand the question.", "The request is simple."),
    ("The reply should be short.", "One sentence is enough.", "I keep the reply brief."),
    ("Let me check this once more.", "I look at it again.", "I read the question again."),
    ("That looks right.", "This fits well.", "I see no problem."),
    ("No further detail is needed.", "Nothing else was asked.", "I leave out the rest."),
    ("I am quite sure.", "I feel certain.", "There is no doubt."),
    ("The tone should be friendly.", "I use plain words.", "A kind tone is good."),
    ("I can answer now.", "Now I write the answer.", "The answer can follow."),
    ("I am done with thinking.", "That is all I need.", "No more steps are left."),
]

Count = Callable[[str], int]


def compose_thinking(rng: Rng, chat: Chat, budget: int, count: Count) -> str:
    """Sentences that fill most of `budget` tokens, the closing newline included.

    The order is fixed and the text stops before the first sentence that does not fit, so that the
    last sentence tells how much was used; the result comes at the end.
    """
    room = budget - 1 - budget // 8
    fitting = [core for core in chat.cores if count(core) <= room]
    core = max(fitting, key=count) if fitting else "Easy."
    chosen: list[str] = []
    for sentence in [*chat.thoughts, *(rng.choice(group) for group in GENERAL_THOUGHTS)]:
        if count(" ".join([*chosen, sentence, core])) > room:
            break
        chosen.append(sentence)
    return " ".join([*chosen, core])


def add_thinking(rng: Rng, chat: Chat, count: Count, *, cut_share: float = 0.15) -> None:
    """Gives `chat` a thinking budget and a thinking text of that size.

    A share of the texts is longer than the budget and marked as cut at its end.
    """
    budget = rng.choice(BUDGETS) if rng.random() < 0.8 else rng.randint(4, 64)
    chat.thinking_budget = budget
    chat.cut = rng.random() < cut_share
    chat.thinking = compose_thinking(rng, chat, 2 * budget if chat.cut else budget, count)


def prompt_text(messages: list[dict[str, str]], *, thinking_budget: int | None = None) -> str:
    """The prompt for the next reply, as `chat_template.jinja` writes it.

    `thinking_budget` None leaves thinking out, 0 writes the empty pair.
    """
    system = "".join(message["content"] for message in messages[:1] if message["role"] == "system")
    if thinking_budget:
        system += ("\n" if system else "") + f"Thinking budget: {thinking_budget} tokens."
    parts = [f"<|im_start|>system\n{system}<|im_end|>\n"] if system else []
    parts += [f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n"
              for message in messages if message["role"] != "system"]  # fmt: skip
    opening = {None: "", 0: EMPTY_THINK}.get(thinking_budget, "<think>\n")
    return "".join(parts) + "<|im_start|>assistant\n" + opening


class Renderer:
    """Writes chats as token ids with a loss weight for each token."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.digits = {tokenizer.token_to_id(str(digit)) for digit in range(10)}

    def count(self, text: str) -> int:
        """Number of tokens of `text`."""
        return len(self.encode(text))

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def _user_weights(self, rng: Rng, ids: list[int]) -> list[float]:
        """Few user tokens count, at half weight, and random digits never do."""
        return [0.5 if i not in self.digits and rng.random() < 0.15 else 0.0 for i in ids]

    def _thinking(self, chat: Chat) -> tuple[list[int], list[float]]:
        """Ids and weights of the thinking part of the last reply, after `<think>` and newline."""
        assert chat.thinking is not None and chat.thinking_budget is not None
        end = self.encode(THINK_END)
        ids = self.encode(chat.thinking)
        if chat.cut:
            ids = ids[: chat.thinking_budget]
            return ids + end, [1.0] * len(ids) + [0.0] * len(end)
        return ids + end, [1.0] * (len(ids) + len(end))

    def render(
        self, rng: Rng, chat: Chat, *, empty_share: float = 0.15
    ) -> tuple[list[int], list[float]]:
        """Ids and weights of the whole chat, ending with `<|endoftext|>`; both `[T]`."""
        ids: list[int] = []
        weights: list[float] = []

        def add(new_ids: list[int], new_weights: list[float] | float = 0.0) -> None:
            ids.extend(new_ids)
            weights.extend(
                new_weights if isinstance(new_weights, list) else [new_weights] * len(new_ids)
            )

        system = rng.choice(SYSTEM_PROMPTS) if rng.random() < 0.2 else ""
        if chat.thinking is not None:
            system += ("\n" if system else "") + f"Thinking budget: {chat.thinking_budget} tokens."
        if system:
            add(self.encode(f"<|im_start|>system\n{system}<|im_end|>\n"))
        for index, message in enumerate(chat.messages):
            add(self.encode(f"<|im_start|>{message['role']}\n"))
            content = self.encode(message["content"])
            if message["role"] == "user":
                add(content, self._user_weights(rng, content))
                add(self.encode("<|im_end|>\n"))
                continue
            if index == len(chat.messages) - 1 and chat.thinking is not None:
                add(self.encode("<think>\n"))
                add(*self._thinking(chat))
            elif index == len(chat.messages) - 1 and rng.random() < empty_share:
                add(self.encode(EMPTY_THINK))
            add(content + self.encode("<|im_end|>"), 1.0)
            add(self.encode("\n"))
        add(self.encode("<|endoftext|>"))
        return ids, weights
