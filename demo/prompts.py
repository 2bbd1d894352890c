"""Showcase prompts with labels and expected key words; `python -m demo.prompts` writes prompts.json."""

from __future__ import annotations

import json
from pathlib import Path

# (task, user turns and assistant turns in alternation, expected key words; empty = free reply)
SHOWCASE: list[tuple[str, list[str], list[str]]] = [
    ("capital", ["What is the capital of Ireland?"], ["Dublin"]),
    ("capital", ["Which city is the capital of Japan?"], ["Tokyo"]),
    ("continent", ["On which continent is Kenya?"], ["Africa"]),
    ("unit", ["How many seconds are in a minute?"], ["60"]),
    ("unit", ["How many bits does a byte have?"], ["8"]),
    ("opposite", ["What is the opposite of hot?"], ["cold"]),
    ("opposite", ["Give me the opposite of narrow."], ["wide"]),
    ("young_animal", ["What is a young horse called?"], ["foal"]),
    ("element", ["What is the chemical symbol for gold?"], ["Au"]),
    ("neighbour", ["Which day comes after Friday?"], ["Saturday"]),
    ("neighbour", ["Which month comes before May?"], ["April"]),
    ("board", ["How many CPU cores does the AGX Orin 64GB have?"], ["12"]),
    ("concept", ["What is speculative decoding?"], ["guesses"]),
    ("concept", ["Explain the KV cache."], ["keys and values"]),
    ("concept", ["What is an MTP head?"], ["one more token"]),
    ("count", ["Count from 3 to 9."], ["3, 4, 5, 6, 7, 8, 9"]),
    ("repeat", ["Repeat after me: tiger maple ocean"], ["tiger maple ocean"]),
    ("spell", ["How do you spell Mia?"], ["M-I-A"]),
    ("story", ["Tell me a story about a fox named Leo."], ["Leo"]),
    ("plan", ["Plan my Saturday."], []),
    ("list", ["List three fruits."], []),
    ("small_talk", ["Who are you?"], ["demo"]),
    ("remember", ["Remember this: My locker code is 4071.", "Noted.", "What is my locker code?"], ["4071"]),
    ("remember", ["My dog is called Nora. My favourite colour is green.", "Got it.",
                  "What is my favourite colour?"], ["green"]),
    ("user_name", ["My name is Clara.", "Hi Clara!", "What is my name?"], ["Clara"]),
]  # fmt: skip

BANNER = (
    "I know capitals, units, opposites, a few elements, Jetson Orin boards and terms of language-model "
    "decoding; I count, spell, repeat, remember your name, favourite colour or cat, and make up short stories and lists. "
    "Anything else gets a fluent but wrong reply, and I cannot do arithmetic."
)
EXAMPLES = [turns[0] for _, turns, _ in SHOWCASE if len(turns) == 1][::2] + ["My name is Clara."]


def showcase() -> list[dict[str, object]]:
    """The showcase prompts as message lists with labels."""
    roles = ("user", "assistant")
    return [{"task": task, "keywords": keywords,
             "messages": [{"role": roles[i % 2], "content": text} for i, text in enumerate(turns)]}
            for task, turns, keywords in SHOWCASE]  # fmt: skip


if __name__ == "__main__":
    content = json.dumps(showcase(), indent=1, ensure_ascii=False) + "\n"
    Path(__file__).with_name("prompts.json").write_text(content, encoding="utf-8")
