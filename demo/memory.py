"""Dialogues whose answers stand in the context: remembered facts and needles in long text."""

from __future__ import annotations

from dataclasses import dataclass

from demo import words
from demo.chat import Chat, Generator, Rng, assistant, capitalise, user, with_articles

DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
ROOMS = [f"{letter}{number}" for letter in "ABCDEFG" for number in range(1, 10)]

# attribute -> values; "#" stands for a random four-digit number
ATTRIBUTES: dict[str, list[str]] = {
    "locker code": ["#"],
    "door code": ["#"],
    "ticket number": ["#"],
    "secret word": words.SECRETS,
    "password": words.SECRETS,
    "favourite colour": words.COLOURS,
    "favourite food": words.FOODS,
    "favourite animal": words.ANIMALS,
    "home town": words.CITIES,
    "job": words.JOBS,
    "hobby": words.HOBBIES,
    "instrument": words.INSTRUMENTS,
    "best friend": words.NAMES,
    "dog": words.NAMES,
    "cat": words.NAMES,
    "meeting day": DAYS,
    "room": ROOMS,
}


@dataclass(kw_only=True)
class Fact:
    """One attribute of one owner; `owner` None is the user."""

    owner: str | None
    attribute: str
    value: str

    def key(self) -> str:
        """The combination that decides the split."""
        return f"{self.owner}|{self.attribute}|{self.value}"

    def statement(self, rng: Rng) -> str:
        """A sentence that tells the fact."""
        whose = "my" if self.owner is None else f"{self.owner}'s"
        if self.attribute in ("dog", "cat"):
            forms = [f"{whose} {self.attribute} is called {self.value}.",
                     f"the name of {whose} {self.attribute} is {self.value}."]  # fmt: skip
        else:
            forms = [f"{whose} {self.attribute} is {self.value}."] * 3
            if not self.value[0].islower():  # a capital letter would change the value
                forms.append(f"{self.value} is {whose} {self.attribute}.")
        return capitalise(rng.choice(forms))

    def question(self, rng: Rng) -> str:
        """A question for the value."""
        whose = "my" if self.owner is None else f"{self.owner}'s"
        if self.attribute in ("dog", "cat"):
            return rng.choice([f"What is the name of {whose} {self.attribute}?",
                               f"What is {whose} {self.attribute} called?",
                               f"Do you know the name of {whose} {self.attribute}?"])  # fmt: skip
        return rng.choice([f"What is {whose} {self.attribute}?", f"Tell me {whose} {self.attribute}.",
                           f"Do you remember {whose} {self.attribute}?",
                           f"Which {self.attribute} did I name for {self.owner or 'me'}?"])  # fmt: skip

    def answer(self, rng: Rng) -> str:
        """A reply that names the value."""
        whose = "your" if self.owner is None else f"{self.owner}'s"
        if self.attribute in ("dog", "cat"):
            return capitalise(rng.choice([f"{whose} {self.attribute} is called {self.value}.",
                                          f"It is called {self.value}.", f"{self.value}."]))  # fmt: skip
        return capitalise(rng.choice([f"{whose} {self.attribute} is {self.value}.",
                                      f"{whose} {self.attribute} is {self.value}.",
                                      f"It is {self.value}.", f"{self.value}."]))  # fmt: skip


def draw_facts(rng: Rng, number: int, *, own_share: float = 0.5) -> list[Fact]:
    """`number` facts without two for the same owner and attribute."""
    facts: dict[tuple[str | None, str], Fact] = {}
    while len(facts) < number:
        owner = None if rng.random() < own_share else rng.choice(words.NAMES)
        attribute = rng.choice(list(ATTRIBUTES))
        value = rng.choice(ATTRIBUTES[attribute])
        value = f"{rng.randrange(1000, 10000)}" if value == "#" else value
        facts.setdefault((owner, attribute), Fact(owner=owner, attribute=attribute, value=value))
    return list(facts.values())


NOTED = ["Noted.", "I will remember that.", "Okay, I have noted it.", "Thanks, I will keep it in mind.",
         "Got it.", "All right.", "Good to know!"]  # fmt: skip
LEAD_INS = [
    "",
    "",
    "Please remember: ",
    "Remember this: ",
    "Note this. ",
    "For later: ",
    "By the way, ",
]


def _question_turns(rng: Rng, facts: list[Fact], number: int) -> tuple[list[dict[str, str]], Fact]:
    """Questions and answers about `number` facts, and the fact asked for last."""
    asked = rng.sample(facts, min(number, len(facts)))
    messages = []
    for fact in asked:
        messages += [user(fact.question(rng)), assistant(fact.answer(rng))]
    return messages, asked[-1]


def _memory_chat(task: str, messages: list[dict[str, str]], asked: Fact) -> Chat:
    whose = "the user's" if asked.owner is None else f"{asked.owner}'s"
    return Chat(
        task=task, key=f"{task}|{asked.key()}", messages=messages, keywords=[asked.value],
        thoughts=["I look back in the text.", f"The question is about {whose} {asked.attribute}.",
                  "It was said before.", "I must not mix up the facts.", "I search for the right line."],
        cores=[f"{capitalise(asked.value)}.", f"It said {asked.value}.",
               f"{capitalise(whose)} {asked.attribute} is {asked.value}."],
    )  # fmt: skip


def remember(rng: Rng) -> Chat:
    """A dialogue that tells one to four facts and then asks for some of them."""
    facts = draw_facts(rng, rng.randint(1, 4), own_share=0.7)
    messages = []
    if rng.random() < 0.5:
        text = " ".join(fact.statement(rng) for fact in facts)
        messages = [user(rng.choice(LEAD_INS) + text), assistant(rng.choice(NOTED))]
    else:
        for fact in facts:
            messages += [
                user(rng.choice(LEAD_INS) + fact.statement(rng)),
                assistant(rng.choice(NOTED)),
            ]
    turns, asked = _question_turns(rng, facts, rng.randint(1, 3))
    return _memory_chat("remember", messages + turns, asked)


def user_name(rng: Rng) -> Chat:
    """The user gives a name and asks for it later."""
    name = rng.choice(words.NAMES)
    hello = rng.choice(
        [
            f"My name is {name}.",
            f"Hi, I am {name}.",
            f"Hello, my name is {name}.",
            f"Call me {name}.",
        ]
    )
    reply = rng.choice(
        [f"Nice to meet you, {name}!", f"Hello {name}, how can I help?", f"Hi {name}!"]
    )
    ask = rng.choice(["What is my name?", "Who am I?", "Do you remember my name?"])
    answer = rng.choice([f"Your name is {name}.", f"You are {name}.", f"{name}."])
    return Chat(task="user_name", key=f"user_name|{name}{ask}{hello[:3]}", keywords=[name],
                messages=[user(hello), assistant(reply), user(ask), assistant(answer)],
                thoughts=["The user gave a name.", "I look at the first turn."],
                cores=[f"{name}.", f"The name is {name}."])  # fmt: skip


def filler_sentence(rng: Rng) -> str:
    """A sentence that says nothing about any stored fact."""
    animal, place, other = rng.choice(words.ANIMALS), *rng.sample(words.PLACES, 2)
    sentence = rng.choice([
        f"The {place} was {rng.choice(words.WEATHER)} in the morning.",
        f"A {rng.choice(words.ADJECTIVES)} {animal} slept near the {place}.",
        f"The road from the {place} to the {other} was long.",
        f"Someone left a {rng.choice(words.COLOURS)} {rng.choice(words.OBJECTS)} at the {place}.",
        f"It was {rng.choice(words.WEATHER)} near the {other}.",
        f"People at the {place} talked about {rng.choice(words.HOBBIES)}.",
        f"The {rng.choice(words.JOBS)} bought {rng.choice(words.FOODS)} at the {place}.",
        f"A {animal} and a {rng.choice(words.ANIMALS)} met by the {other}.",
    ])  # fmt: skip
    return with_articles(sentence)


def needle(
    rng: Rng,
    *,
    max_chars: int = 900,
    num_facts: int | None = None,
    num_questions: int | None = None,
) -> Chat:
    """Facts hidden in a long text of about `max_chars` characters, followed by questions."""
    facts = draw_facts(rng, num_facts or rng.randint(1, 8), own_share=0.1)
    sentences: list[str] = []
    used = sum(len(fact.statement(rng)) + 1 for fact in facts)
    while used < max_chars:
        sentences.append(filler_sentence(rng))
        used += len(sentences[-1]) + 1
    for fact in facts:
        sentences.insert(rng.randint(0, len(sentences)), fact.statement(rng))
    lead = rng.choice(["Read this text. ", "Here is a text. ", "Please read: ", ""])
    turns, asked = _question_turns(rng, facts, num_questions or rng.randint(1, 4))
    turns[0]["content"] = (
        lead + " ".join(sentences) + rng.choice(["\n", "\n\n", " "]) + turns[0]["content"]
    )
    return _memory_chat("needle", turns, asked)


TASKS: list[tuple[Generator, float]] = [(remember, 12.0), (user_name, 2.0)]
