"""Tasks in the style of RULER (arXiv 2404.06654), worded anew: what a long text is searched for.

Each makes one case; its text is fitted to a length by ``eval_cases.fitted``.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from selfdraft.cli.eval_cases import Case
from selfdraft.cli.eval_needle import needle_case
from selfdraft.cli.eval_wording import Wording, random_digits

MULTI_KEYS = 8
MULTI_VALUES = 4
CHAIN_LINKS = 4
OTHER_CHAINS = 2
COMMON_WORDS, COMMON_TIMES = 5, 6
RARE_WORDS, RARE_TIMES = 40, 1

_SYLLABLES = ("ba", "cor", "del", "fin", "gar", "hol", "jun", "kel", "lum", "mar", "nor", "pel",
              "quin", "ros", "sal", "tor", "vel", "wen", "yar", "zim")  # fmt: skip


def single_needle(rng: random.Random, wording: Wording) -> Case:
    """One fact anywhere."""
    return needle_case(rng, wording, depth=rng.random(), keys=1)


def multi_key(rng: random.Random, wording: Wording) -> Case:
    """One fact of several."""
    return needle_case(rng, wording, depth=rng.random(), keys=MULTI_KEYS)


def multi_value(rng: random.Random, _wording: Wording) -> Case:
    """Every value that one name was given."""
    name = _invented(rng, 1)[0]
    values = _numbers(rng, MULTI_VALUES)
    sentences = [f"A number of {name} is {value}." for value in values]
    return Case(
        lead="The text below gives several numbers of one name.\n\n",
        planted=tuple((rng.random(), sentence) for sentence in sentences),
        question=f"\n\nList all {len(values)} numbers of {name} that the text gives.",
        answers=tuple(values),
    )


def variable_tracking(rng: random.Random, _wording: Wording) -> Case:
    """Every name that a number was passed on to, along a chain of assignments."""
    chains = 1 + OTHER_CHAINS
    names = _invented(rng, chains * (CHAIN_LINKS + 1))
    numbers = _numbers(rng, chains)
    planted: list[tuple[float, str]] = []
    for chain, number in enumerate(numbers):
        links = names[chain::chains]
        places = sorted(rng.random() for _ in links)
        sources = [number, *links]
        planted += [
            (place, f"Set {name} to {source if source == number else f'the value of {source}'}.")
            for place, name, source in zip(places, links, sources, strict=False)
        ]
    return Case(
        lead="The text below sets names to values. A name set to another has its value.\n\n",
        planted=tuple(planted),
        question=f"\n\nList all {CHAIN_LINKS + 1} names whose value is {numbers[0]}.",
        answers=tuple(names[0::chains]),
    )


def common_words(rng: random.Random, _wording: Wording) -> Case:
    """The words of a list that come most often."""
    words = _invented(rng, COMMON_WORDS + RARE_WORDS)
    common, rare = words[:COMMON_WORDS], words[COMMON_WORDS:]
    body = common * COMMON_TIMES + rare * RARE_TIMES
    rng.shuffle(body)
    return Case(
        lead="Below is a long list of words.\n\n",
        planted=(),
        question=f"\n\nWhich {len(common)} words come most often in the list?",
        answers=tuple(common),
        body=tuple(body),
    )


TASKS: dict[str, Callable[[random.Random, Wording], Case]] = {
    "single": single_needle,
    "multi_key": multi_key,
    "multi_value": multi_value,
    "variables": variable_tracking,
    "common_words": common_words,
}


def _invented(rng: random.Random, number: int) -> list[str]:
    """Different words of three syllables that mean nothing."""
    words: dict[str, None] = {}
    while len(words) < number:
        words["".join(rng.choice(_SYLLABLES) for _ in range(3))] = None
    return list(words)


def _numbers(rng: random.Random, count: int) -> list[str]:
    numbers: dict[str, None] = {}
    while len(numbers) < count:
        numbers[random_digits(rng, "######")] = None
    return list(numbers)
