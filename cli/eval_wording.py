"""How an evaluation words its texts: filler, facts and questions, as data anyone can write.

A wording is a JSON file with the fields of ``Wording``. In filler sentences ``{place}`` stands
for a word of the list ``place``; facts and questions have ``{owner}``, ``{attribute}`` and (facts)
``{value}``; ``#`` in a value is a random digit.
"""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from selfdraft.errors import ConfigError
from selfdraft.strict import StrictError, record_from_json

SHIPPED = ("plain", "demo")
_SLOT = re.compile(r"\{(\w+)\}")
_ARTICLE = re.compile(r"\b([Aa]) (?=[aeiou])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One thing to find again."""

    owner: str
    attribute: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wording:
    """Texts with slots, and the words that fill them."""

    about: str
    leads: tuple[str, ...]
    """What stands before the text."""
    facts: tuple[str, ...]
    questions: tuple[str, ...]
    """What stands behind the text."""
    filler: tuple[str, ...]
    words: dict[str, tuple[str, ...]]
    owners: tuple[str, ...]
    attributes: dict[str, tuple[str, ...]]
    """Values by attribute."""

    def __post_init__(self) -> None:
        for name in ("leads", "facts", "questions", "filler", "owners", "attributes"):
            if not getattr(self, name):
                raise ValueError(f"{name} is empty")
        for sentence in self.filler:
            unknown = [slot for slot in _SLOT.findall(sentence) if not self.words.get(slot)]
            if unknown:
                raise ValueError(f"filler {sentence!r} uses {{{unknown[0]}}}, which words lacks")
        for name, texts, slots in (
            ("facts", self.facts, ("owner", "attribute", "value")),
            ("questions", self.questions, ("owner", "attribute")),
        ):
            for text in texts:
                if sorted(_SLOT.findall(text)) != sorted(slots):
                    raise ValueError(f"{name} {text!r} must have {', '.join(slots)}, once each")

    def filler_sentence(self, rng: random.Random) -> str:
        """A sentence that states no fact."""
        sentence = _SLOT.sub(lambda slot: rng.choice(self.words[slot[1]]), rng.choice(self.filler))
        return _ARTICLE.sub(r"\1n ", sentence)

    def draw_facts(self, rng: random.Random, number: int) -> list[Fact]:
        """Facts with different owners and values, so that no answer fits two questions."""
        facts: list[Fact] = []
        owners = rng.sample(self.owners, k=len(self.owners))
        taken: set[str] = set()
        while len(facts) < number:
            owner = owners[len(facts) % len(owners)]
            attribute = rng.choice(list(self.attributes))
            value = random_digits(rng, rng.choice(self.attributes[attribute]))
            if value not in taken:
                taken.add(value)
                facts.append(Fact(owner=owner, attribute=attribute, value=value))
        return facts

    def statement(self, rng: random.Random, fact: Fact) -> str:
        """A sentence that states the fact."""
        return _filled(rng.choice(self.facts), fact)

    def question(self, rng: random.Random, fact: Fact) -> str:
        """A question for its value."""
        return _filled(rng.choice(self.questions), fact)


def load_wording(name: str) -> Wording:
    """A shipped wording by name, else the one in the file ``name``. Raises ``ConfigError``."""
    shipped = name in SHIPPED
    place = files("selfdraft.cli") / "wordings" / f"{name}.json" if shipped else Path(name)
    try:
        data = json.loads(place.read_text(encoding="utf-8"))
        return record_from_json(Wording, data, where="wording")
    except (OSError, ValueError) as error:
        # StrictError is a ValueError that says where it found what.
        what = str(error) if isinstance(error, StrictError) else f"cannot be read: {error}"
        raise ConfigError(
            f"wording {name}: {what}",
            hint=f"give {' or '.join(SHIPPED)}, or a file like cli/wordings/plain.json",
        ) from None


def random_digits(rng: random.Random, text: str) -> str:
    """``text`` with a digit for every ``#``, the first of them not zero."""
    digits = iter([str(rng.randint(1, 9))] + [str(rng.randrange(10)) for _ in text])
    return "".join(next(digits) if letter == "#" else letter for letter in text)


def _filled(text: str, fact: Fact) -> str:
    values = {"owner": fact.owner, "attribute": fact.attribute, "value": fact.value}
    return _SLOT.sub(lambda slot: values[slot[1]], text)
