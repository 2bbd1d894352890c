"""Questions with one right answer: facts, counting, copying and spelling."""

from __future__ import annotations

from demo import facts, words
from demo.chat import Chat, Generator, Rng, assistant, capitalise, decorate, fill, opened, user


def _closed(
    rng: Rng,
    task: str,
    item: str,
    questions: list[str],
    answers: list[str],
    keywords: list[str],
    *,
    thoughts: list[str] | None = None,
    cores: list[str] | None = None,
    **fields: str,
) -> Chat:
    question, which = fill(rng, questions, **fields)
    answer, _ = fill(rng, answers, **fields)
    return Chat(
        task=task,
        key=f"{task}|{item}|{which}",
        messages=[user(decorate(rng, capitalise(question))),
                  assistant(opened(rng, capitalise(answer)))],
        keywords=keywords,
        thoughts=thoughts or [],
        cores=cores or [],
    )  # fmt: skip


def capital(rng: Rng) -> Chat:
    """Capital of a country."""
    country = rng.choice(list(facts.CAPITALS))
    city, continent = facts.CAPITALS[country], facts.CONTINENTS[country]
    return _closed(
        rng, "capital", country,
        ["What is the capital of {c}?", "Which city is the capital of {c}?",
         "Name the capital of {c}.", "Do you know the capital of {c}?",
         "What's the capital city of {c}?", "{c}: what is its capital?"],
        ["The capital of {c} is {v}.", "It is {v}.", "{v} is the capital of {c}.", "{v}.",
         "That would be {v}, the capital of {c}."],
        [city],
        thoughts=["The user asks for a capital.", f"The country is {country}.",
                  f"{country} is in {continent}.", "I need the name of one city."],
        cores=[f"{city}.", f"{country}: {city}.", f"The capital of {country} is {city}."],
        c=country, v=city,
    )  # fmt: skip


def continent(rng: Rng) -> Chat:
    """Continent of a country."""
    country = rng.choice(list(facts.CONTINENTS))
    value = facts.CONTINENTS[country]
    return _closed(
        rng, "continent", country,
        ["On which continent is {c}?", "Where is {c}?", "Which continent is {c} in?",
         "In what part of the world is {c}?"],
        ["{c} is in {v}.", "It is in {v}.", "{c} lies in {v}.", "You find {c} in {v}."],
        [value],
        thoughts=["The user asks about a place.", f"The country is {country}.",
                  f"Its capital is {facts.CAPITALS[country]}.", "I need a continent."],
        cores=[f"{value}.", f"{country}: {value}.", f"{country} is in {value}."],
        c=country, v=value,
    )  # fmt: skip


def unit(rng: Rng) -> Chat:
    """How many small units make a large one."""
    large, number, small = rng.choice(facts.UNITS)
    article = "an" if large == "hour" else "a"
    return _closed(
        rng, "unit", large,
        ["How many {s} are in {a} {u}?", "How many {s} make {a} {u}?",
         "{a} {u} has how many {s}?", "How many {s} does {a} {u} have?"],
        ["{a} {u} has {n} {s}.", "There are {n} {s} in {a} {u}.", "It is {n} {s}.",
         "{n} {s} make {a} {u}."],
        [str(number)],
        thoughts=["This is about units.", f"The larger unit is the {large}.",
                  f"The answer is counted in {small}.", "A single number is enough."],
        cores=[f"{number}.", f"{number} {small}.", f"One {large} is {number} {small}."],
        u=large, n=str(number), s=small, a=article,
    )  # fmt: skip


def opposite(rng: Rng) -> Chat:
    """Opposite of an adjective, in either direction."""
    word, other = rng.choice(list(facts.OPPOSITES.items()))
    if rng.random() < 0.5:
        word, other = other, word
    return _closed(
        rng, "opposite", word,
        ["What is the opposite of {w}?", 'What is the opposite of "{w}"?',
         "Give me the opposite of {w}.", "Which word means the opposite of {w}?"],
        ["The opposite of {w} is {o}.", "It is {o}.", '"{o}" is the opposite of "{w}".', "{o}."],
        [other],
        thoughts=["The user wants an opposite.", f"The word is {word}.", "I look for one word.",
                  f"If it is not {word}, it is {other}."],
        cores=[f"{capitalise(other)}.", f"{capitalise(word)}, so {other}.",
               f"The opposite of {word} is {other}."],
        w=word, o=other,
    )  # fmt: skip


def young_animal(rng: Rng) -> Chat:
    """Name of a young animal."""
    animal, young = rng.choice(list(facts.YOUNG_ANIMALS.items()))
    return _closed(
        rng, "young_animal", animal,
        ["What is a young {a} called?", "What do you call a baby {a}?",
         "What is the name for a young {a}?"],
        ["A young {a} is called a {y}.", "It is called a {y}.", "A baby {a} is a {y}.",
         "People call it a {y}."],
        [young],
        thoughts=["The question is about animals.", f"The animal is a {animal}.",
                  "Young animals often have their own name."],
        cores=[f"A {young}.", f"Young {animal}: {young}.", f"A young {animal} is a {young}."],
        a=animal, y=young,
    )  # fmt: skip


def element(rng: Rng) -> Chat:
    """Symbol of a chemical element."""
    name, symbol = rng.choice(list(facts.ELEMENTS.items()))
    return _closed(
        rng, "element", name,
        ["What is the chemical symbol for {e}?", "Which symbol stands for {e}?",
         "What is the symbol of {e}?"],
        ["The symbol for {e} is {s}.", "{e} has the symbol {s}.", "Its symbol is {s}.",
         "It is {s}."],
        [symbol],
        thoughts=["This is chemistry.", f"The element is {name}.", "A symbol is short."],
        cores=[f"{symbol}.", f"{capitalise(name)}: {symbol}.", f"The symbol is {symbol}."],
        e=name, s=symbol,
    )  # fmt: skip


def neighbour(rng: Rng) -> Chat:
    """What comes before or after a weekday, month, planet or letter."""
    kind, items, cyclic = rng.choice([
        ("day", facts.WEEKDAYS, True), ("month", facts.MONTHS, True),
        ("planet", facts.PLANETS, False), ("letter", list("ABCDEFGHIJKLMNOPQRSTUVWXYZ"), False),
    ])  # fmt: skip
    step = rng.choice([1, 1, -1])
    low, high = (0, len(items)) if cyclic else (max(0, -step), len(items) - max(0, step))
    index = rng.randrange(low, high)
    word, value = items[index], items[(index + step) % len(items)]
    where = "after" if step > 0 else "before"
    return _closed(
        rng, "neighbour", f"{word}{step}",
        ["Which {k} comes {p} {w}?", "What {k} comes {p} {w}?", "Which {k} is right {p} {w}?"],
        ["The {k} {p} {w} is {v}.", "It is {v}.", "{v} comes {p} {w}.", "{v}."],
        [value],
        thoughts=[f"I need the {kind} {where} {word}.", "The order is fixed.",
                  f"The start is {word}."],
        cores=[f"{value}.", f"{capitalise(where)} {word}: {value}."],
        k=kind, w=word, v=value, p=where,
    )  # fmt: skip


def board(rng: Rng) -> Chat:
    """A figure of a Jetson Orin board."""
    name, what, value = rng.choice(facts.BOARDS)
    many = "much" if what == "memory" else "many"
    return _closed(
        rng, "board", f"{name}|{what}",
        ["How {m} {w} does the Jetson {b} have?", "How {m} {w} does the {b} have?",
         "Tell me how {m} {w} the {b} has.", "How {m} {w} are on the Jetson {b}?"
         if many == "many" else "How {m} {w} is on the Jetson {b}?"],
        [f"The {{b}} has {{v}}{' of memory' if many == 'much' else ' {w}'}.",
         f"It has {{v}}{' of memory' if many == 'much' else ' {w}'}.",
         "On the {b} it is {v}."],
        [value],
        thoughts=["The user asks about a Jetson board.", f"The board is the {name}.",
                  f"The question is about {what}.", "I recall the data sheet."],
        cores=[f"{value}.", f"{name}: {value}.", f"{capitalise(what)} of the {name}: {value}."],
        b=name, w=what, v=value, m=many,
    )  # fmt: skip


def concept(rng: Rng) -> Chat:
    """Definition of a term of language-model decoding."""
    term = rng.choice(list(facts.CONCEPTS))
    definition, more = facts.CONCEPTS[term]
    chat = _closed(
        rng, "concept", term,
        ["What is {t}?", "Explain {t}.", "What does {t} mean?", "Can you explain {t}?",
         "Define {t}.", "Tell me about {t}.", "What do people mean by {t}?"],
        ["{T} is {d}.", "{T} is {d}. {more}", "{T} is {d}. {more}",
         "In short, {t} is {d}.", "In short, {t} is {d}. {more}"],
        [" ".join(definition.split()[:4])],
        thoughts=[f"The term is {term}.", "The user wants a definition.",
                  "One or two sentences are enough.", "I should use plain words.",
                  "It belongs to language models."],
        cores=["A definition.", f"It is {definition}."],
        t=term, T=capitalise(term), d=definition, more=more,
    )  # fmt: skip
    return chat


def count(rng: Rng) -> Chat:
    """Counting up or down over a short range."""
    start, length = rng.randint(0, 20), rng.randint(3, 8)
    numbers = [str(n) for n in range(start, start + length)]
    down = rng.random() < 0.3
    if down:
        numbers.reverse()
    text, sep = ", ".join(numbers), rng.choice([", ", " "])
    direction = " down" if down else ""
    return _closed(
        rng, "count", f"{numbers[0]}-{numbers[-1]}",
        [f"Count{direction} from {{a}} to {{b}}.", f"Please count{direction} from {{a}} to {{b}}.",
         f"Can you count{direction} from {{a}} to {{b}}?"],
        ["{t}.", "Here you are: {t}.", "{t}."],
        [text],
        thoughts=[f"I start at {numbers[0]}.", f"I stop at {numbers[-1]}.",
                  "Each number follows the last."],
        cores=[f"{numbers[0]} to {numbers[-1]}.", "Counting."],
        a=numbers[0], b=numbers[-1], t=sep.join(numbers) if sep == ", " else text,
    )  # fmt: skip


def _random_items(rng: Rng) -> list[str]:
    pool = rng.choice([words.SECRETS, words.NAMES, words.FOODS, words.OBJECTS, words.CITIES,
                       [str(rng.randint(0, 999)) for _ in range(8)]])  # fmt: skip
    return rng.sample(pool, rng.randint(2, 5))


def repeat(rng: Rng) -> Chat:
    """Copying words or numbers."""
    text = " ".join(_random_items(rng))
    return _closed(
        rng, "repeat", text,
        ["Repeat after me: {t}", "Say this: {t}", "Please repeat: {t}", "Copy this line: {t}"],
        ["{t}", "{t}", "Here it is: {t}"],
        [text],
        thoughts=["I only have to copy.", "Nothing may change.", f"It starts with {text.split()[0]}."],
        cores=["Copy it.", f"Copy: {text}."],
        t=text,
    )  # fmt: skip


def pick(rng: Rng) -> Chat:
    """First or last word of a list."""
    items = _random_items(rng)
    which = rng.choice(["first", "last"])
    value = items[0] if which == "first" else items[-1]
    return _closed(
        rng, "pick", " ".join(items) + which,
        ["What is the {w} word of this list: {t}?", "Here is a list: {t}. Which one is {w}?",
         "Give me the {w} item: {t}."],
        ["The {w} one is {v}.", "It is {v}.", "{v}."],
        [value],
        thoughts=[f"The list has {len(items)} items.", f"I need the {which} one.",
                  "I read the list once."],
        cores=[f"{capitalise(value)}.", f"The {which} is {value}."],
        w=which, t=", ".join(items), v=value,
    )  # fmt: skip


def spell(rng: Rng) -> Chat:
    """Spelling of a word letter by letter."""
    word = rng.choice(words.NAMES + words.SECRETS + words.COLOURS + words.ANIMALS)
    text = "-".join(word.upper())
    return _closed(
        rng, "spell", word,
        ["How do you spell {w}?", "Spell {w}.", "Please spell the word {w}."],
        ["{t}.", "It is spelled {t}.", "{w} is spelled {t}."],
        [text],
        thoughts=[f"The word is {word}.", f"It has {len(word)} letters.",
                  "I go letter by letter."],
        cores=["Letters.", f"{text}."],
        w=word, t=text,
    )  # fmt: skip


TASKS: list[tuple[Generator, float]] = [
    (capital, 4.0), (continent, 1.5), (unit, 2.5), (opposite, 3.0), (young_animal, 1.5),
    (element, 1.5), (neighbour, 3.5), (board, 1.5), (concept, 5.0), (count, 2.0), (repeat, 2.0),
    (pick, 1.0), (spell, 2.0),
]  # fmt: skip
