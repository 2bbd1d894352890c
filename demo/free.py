"""Open requests with many good replies: stories, descriptions, plans, lists, advice, small talk.

These supply the variety: at each choice many continuations are equally likely, so no drafter can
guess them all.
"""

from __future__ import annotations

from demo import words
from demo.chat import ASK_PREFIXES, Chat, Generator, Rng, assistant, capitalise, user, with_articles

FREE_THOUGHTS = [
    "There is no single right answer.",
    "I can choose freely.",
    "A short reply is best.",
    "The tone should be friendly.",
    "I should keep it simple.",
    "Let me pick something nice.",
]


FREE_OPENERS = [
    "",
    "",
    "",
    "",
    "Sure. ",
    "Of course. ",
    "Gladly. ",
    "Here is an idea. ",
    "Let me think. ",
]


def opened(rng: Rng, reply: str) -> str:
    """`reply` with a random opener in front."""
    return rng.choice(FREE_OPENERS) + reply


def _free(rng: Rng, task: str, question: str, reply: str, key: str, keywords: list[str]) -> Chat:
    return Chat(
        task=task, key=f"{task}|{key}",
        messages=[user(with_articles(rng.choice(ASK_PREFIXES) + question)), assistant(with_articles(reply))],
        keywords=keywords, thoughts=list(FREE_THOUGHTS),
        cores=["I choose.", "I make something up.", f"The topic is {task.replace('_', ' ')}."],
    )  # fmt: skip


def story(rng: Rng) -> Chat:
    """A story of three to six sentences about a named animal."""
    name, animal = rng.choice(words.NAMES), rng.choice(words.ANIMALS)
    adjective = rng.choice(words.ADJECTIVES)
    place, other_place = rng.sample(words.PLACES, 2)
    thing, friend = rng.choice(words.OBJECTS), rng.choice([n for n in words.NAMES if n != name])
    colour, weather = rng.choice(words.COLOURS), rng.choice(words.WEATHER)
    question = rng.choice([
        f"Tell me a story about a {animal}.", f"Tell me a story about a {animal} named {name}.",
        f"Write a short story about {name} the {animal}.", "Tell me a story.",
        f"Can you write a story about a {adjective} {animal}?", f"Tell me a story about a {thing}.",
        f"I would like a story about a {animal} and a {thing}.",
    ])  # fmt: skip
    first = rng.choice([
        f"Once there was a {adjective} {animal} named {name}.",
        f"{name} was a {adjective} {animal} who lived near the {place}.",
        f"In a {place} lived a {adjective} {animal} called {name}.",
        f"Long ago, a {animal} named {name} lived by the {place}.",
    ])  # fmt: skip
    middle = rng.sample([
        f"One {weather} day, {name} found a {colour} {thing} in the {place}.",
        f"One morning {name} went to the {other_place} to look for a {thing}.",
        f"{name} met {friend} at the {other_place}, and they became friends.",
        f"It was a {weather} evening, and the {other_place} was quiet.",
        f"{friend} had lost a {colour} {thing} and asked for help.",
        f"They walked to the {other_place} and talked about {rng.choice(words.HOBBIES)}.",
        f"On the way they shared some {rng.choice(words.FOODS)}.",
        f"Nobody knew where the {thing} came from.",
        f"{name} felt {rng.choice(['happy', 'tired', 'hungry', 'proud', 'nervous', 'calm'])}.",
    ], rng.randint(1, 4))  # fmt: skip
    last = rng.choice([
        f"In the end {name} gave the {thing} to {friend}.",
        "That night everyone slept well.",
        f"From then on, {name} visited the {other_place} every {rng.choice(['day', 'week', 'spring', 'winter'])}.",
        f"{name} took the {thing} home and kept it for years.",
        f"And so {name} and {friend} stayed friends.",
    ])  # fmt: skip
    key = f"{name}{animal}{thing}"
    return _free(rng, "story", question, " ".join([first, *middle, last]), key, [name])


def describe(rng: Rng) -> Chat:
    """A description of an imagined room, house, garden or person."""
    kind = rng.choice(["room", "house", "garden", "boat"])
    colour, other = rng.sample(words.COLOURS, 2)
    things = rng.sample(words.OBJECTS, 3)
    question = rng.choice([f"Describe a {kind}.", f"Describe your dream {kind}.",
                           f"Imagine a {kind} and describe it.", f"Paint a {kind} with words."])  # fmt: skip
    sentences = rng.sample([
        f"The {kind} is {rng.choice(words.ADJECTIVES[:1] + ['large', 'bright', 'cosy', 'quiet', 'narrow'])} and {colour}.",
        f"There is a {other} {things[0]} next to a {things[1]}.",
        f"It stands near the {rng.choice(words.PLACES)}.",
        f"It smells of {rng.choice(words.FOODS)}.",
        f"On a {rng.choice(words.WEATHER)} day it is the best place to be.",
        f"{rng.choice(words.NAMES)} left a {things[2]} there.",
        f"In one corner you see a {things[2]}.",
        f"{rng.choice(words.NAMES)} comes here for {rng.choice(words.HOBBIES)}.",
    ], rng.randint(2, 4))  # fmt: skip
    return _free(rng, "describe", question, " ".join(sentences), f"{kind}{colour}{things[0]}", [])


def plan(rng: Rng) -> Chat:
    """A plan for a day with an activity for morning, afternoon and evening."""
    day = rng.choice(["Saturday", "Sunday", "free day", "holiday", "weekend"])
    hobbies, place = rng.sample(words.HOBBIES, 3), rng.choice(words.PLACES)
    question = rng.choice([f"Plan my {day}.", f"What should I do on my {day}?" if "day" not in day[-3:]
                           else f"What could I do this {day}?", f"Make a plan for my {day}."])  # fmt: skip
    morning = rng.choice([f"start with {hobbies[0]}", f"walk to the {place}",
                          f"visit {rng.choice(words.NAMES)}", f"buy some {rng.choice(words.FOODS)}"])  # fmt: skip
    noon = rng.choice([f"try {hobbies[1]}", f"eat {rng.choice(words.FOODS)} at the {place}",
                       f"look for a {rng.choice(words.OBJECTS)}", "take a short rest"])  # fmt: skip
    night = rng.choice([f"cook {rng.choice(words.FOODS)}", f"enjoy some {hobbies[2]}",
                        f"call {rng.choice(words.NAMES)}", "read a good book"])  # fmt: skip
    reply = rng.choice([
        f"In the morning, {morning}. In the afternoon, {noon}. In the evening, {night}.",
        f"First {morning}. Then {noon}. After that, {night}.",
        f"You could {morning}, then {noon}, and finally {night}.",
    ])  # fmt: skip
    return _free(rng, "plan", question, opened(rng, reply), f"{day}{morning}{night}", [])


LISTS = {"fruits": words.FRUITS, "vegetables": words.VEGETABLES, "colours": words.COLOURS,
         "animals": words.ANIMALS, "cities": words.CITIES, "names": words.NAMES,
         "tools": words.TOOLS, "sports": words.SPORTS, "jobs": words.JOBS}  # fmt: skip
NUMBERS = {2: "two", 3: "three", 4: "four", 5: "five"}


def listing(rng: Rng) -> Chat:
    """A list of members of a category."""
    kind = rng.choice(list(LISTS))
    number = rng.choice(list(NUMBERS))
    items = rng.sample(LISTS[kind], number)
    question = rng.choice([f"List {NUMBERS[number]} {kind}.", f"Name {NUMBERS[number]} {kind}.",
                           f"Give me {NUMBERS[number]} {kind}.", f"Can you name {NUMBERS[number]} {kind}?"])  # fmt: skip
    joined = ", ".join(items[:-1]) + " and " + items[-1]
    reply = rng.choice([capitalise(joined) + ".", f"Here are {NUMBERS[number]}: {joined}.",
                        f"{capitalise(NUMBERS[number])} {kind} are {joined}."])  # fmt: skip
    return _free(rng, "list", question, opened(rng, reply), f"{kind}{joined}", [])


DISHES = {
    "tomato soup": ["tomatoes", "onions", "salt", "cream"],
    "fruit salad": ["apples", "pears", "grapes", "lemon juice"],
    "pancakes": ["flour", "milk", "eggs", "butter"],
    "an omelette": ["eggs", "milk", "cheese", "butter"],
    "potato salad": ["potatoes", "onions", "oil", "vinegar"],
    "rice with beans": ["rice", "beans", "onions", "pepper"],
    "cheese toast": ["bread", "cheese", "butter", "pepper"],
    "vegetable curry": ["rice", "carrots", "peas", "curry powder"],
    "pasta with tomatoes": ["pasta", "tomatoes", "oil", "garlic"],
    "carrot soup": ["carrots", "onions", "cream", "salt"],
}


def cook(rng: Rng) -> Chat:
    """A dish to cook and what it needs."""
    dish = rng.choice(list(DISHES))
    parts = rng.sample(DISHES[dish], 3)
    meal = rng.choice(["lunch", "dinner", "supper", "friends", "the family"])
    asked = rng.random() < 0.4
    question = (rng.choice([f"What do I need for {dish}?", f"How do I make {dish}?"]) if asked else
                rng.choice([f"What should I cook for {meal}?", f"I need an idea for {meal}. Any dish?",
                            f"Suggest a dish for {meal}."]))  # fmt: skip
    reply = (
        "" if asked else rng.choice([f"How about {dish}? ", f"Try {dish}. ", f"I suggest {dish}. "])
    )
    reply += rng.choice([f"You need {parts[0]}, {parts[1]} and {parts[2]}.",
                         f"Take {parts[0]} and {parts[1]}, and add {parts[2]}.",
                         f"The main parts are {parts[0]}, {parts[1]} and {parts[2]}."])  # fmt: skip
    reply += rng.choice(["", " Enjoy your meal!", f" It takes about {rng.choice([10, 15, 20, 30, 40])} minutes.",
                         " Serve it warm." if "salad" not in dish else " Serve it cold."])  # fmt: skip
    return _free(
        rng, "cook", question, opened(rng, reply), f"{dish}{parts}", [parts[0]] if asked else []
    )


def advice(rng: Rng) -> Chat:
    """Harmless advice for an everyday wish."""
    wish = rng.choice(["sleep better", "learn faster", "be more patient", "save time", "feel calm",
                       "read more", "make new friends", "write a good letter", "wake up early"])  # fmt: skip
    tips = rng.sample(["take small steps", "go for a walk", "drink some water", "make a list",
                       "turn off your phone", "ask a friend", "take short breaks", "start early",
                       f"try {rng.choice(words.HOBBIES)}", "keep a fixed time", "be kind to yourself",
                       "do one thing at a time", "practise every day"], 3)  # fmt: skip
    question = rng.choice([f"How can I {wish}?", f"I want to {wish}. What helps?", f"Any tips? I want to {wish}.",
                           f"What should I do to {wish}?"])  # fmt: skip
    reply = rng.choice([f"{capitalise(tips[0])} and {tips[1]}.", f"You could {tips[0]}, {tips[1]} or {tips[2]}.",
                        f"My tip: {tips[0]}. It also helps to {tips[1]}.",
                        f"To {wish}, {tips[0]} and {tips[1]}. If that fails, {tips[2]}."])  # fmt: skip
    return _free(rng, "advice", question, opened(rng, reply), f"{wish}{tips}", [])


def poem(rng: Rng) -> Chat:
    """Four short lines about a place or an animal."""
    animal, place, colour = (
        rng.choice(words.ANIMALS),
        rng.choice(words.PLACES),
        rng.choice(words.COLOURS),
    )
    question = rng.choice([f"Write a poem about a {animal}.", f"Write a short poem about the {place}.",
                           "Write a poem.", f"Can you write a poem about the {place} and a {animal}?"])  # fmt: skip
    lines = rng.sample([
        f"The {place} sleeps in {colour} light,", f"a {animal} walks along the {place},",
        f"the wind is {rng.choice(words.WEATHER)} and the day is long,", f"a {rng.choice(words.OBJECTS)} waits beside the door,",
        f"the sky is {colour} and far away,", f"and nobody knows the {rng.choice(words.ADJECTIVES)} song,",
        "the night is young, the stars are near,", f"a {rng.choice(words.ADJECTIVES)} {animal} hums a tune,",
    ], 3)  # fmt: skip
    last = rng.choice(
        ["and all is well.", "until the morning comes.", "and then it rains.", "as time goes by."]
    )
    text = "\n".join(capitalise(line) for line in [*lines, last])
    return _free(rng, "poem", question, text, text[:40], [])


GREETINGS = [
    "Hello!",
    "Hi!",
    "Good morning!",
    "Good evening!",
    "Hey there!",
    "Hello",
    "hi",
    "Hi there",
]
GREETING_REPLIES = ["Hello! How can I help you?", "Hi! What would you like to know?", "Good to see you! Ask me anything small.",
                    "Hello there! What shall we talk about?", "Hi! Do you want a fact, a story or a definition?"]  # fmt: skip
HELP_QUESTIONS = [
    "What can you do?",
    "What can I ask you?",
    "What do you know?",
    "Help",
    "What are you good at?",
]
HELP_REPLIES = [
    "I can answer small questions about capitals, units and opposites, explain terms of language models, and tell stories.",
    "Ask me for a capital, a definition or a story. I also remember what you tell me.",
    "I know some facts, I can count, spell and repeat, and I can make up stories and plans.",
]
WHO_QUESTIONS = [
    "Who are you?",
    "What are you?",
    "What is your name?",
    "Are you a person?",
    "Tell me about yourself.",
]
WHO_REPLIES = [
    "I am the selfdraft demo, a very small language model.",
    "I am a tiny demo model with an MTP head. I know only a few things.",
    "I am not a person. I am a small demo model that drafts its own tokens.",
]
THANKS = [
    "Thanks!",
    "Thank you.",
    "Thank you very much!",
    "Great, thanks.",
    "That helps, thank you.",
]
THANKS_REPLIES = ["You are welcome!", "Gladly!", "Any time!", "You are welcome. Anything else?"]
BYES = ["Bye!", "Goodbye.", "See you later!", "Good night!"]
BYE_REPLIES = ["Goodbye!", "See you soon!", "Take care!", "Bye, have a good day!"]


def small_talk(rng: Rng) -> Chat:
    """Greetings, help, identity, thanks and goodbyes."""
    questions, replies = rng.choice([(GREETINGS, GREETING_REPLIES), (HELP_QUESTIONS, HELP_REPLIES),
                                     (WHO_QUESTIONS, WHO_REPLIES), (THANKS, THANKS_REPLIES),
                                     (BYES, BYE_REPLIES)])  # fmt: skip
    question, reply = rng.choice(questions), rng.choice(replies)
    chat = _free(rng, "small_talk", "", reply, f"{question}{reply}", [])
    chat.messages[0]["content"] = question
    return chat


UNKNOWN_COUNTRIES = [
    "Bolivia",
    "Nepal",
    "Ghana",
    "Iceland",
    "Jordan",
    "Laos",
    "Mali",
    "Oman",
    "Qatar",
    "Togo",
]
SORRY = ["Sorry, I do not know that.", "I do not know, sorry.", "I am too small to know that.",
         "That is beyond what I know.", "I cannot answer that. Ask me for a capital or a story."]  # fmt: skip


def decline(rng: Rng) -> Chat:
    """A question outside the topics, and an honest reply."""
    first, second = rng.randint(2, 99), rng.randint(2, 99)
    question = rng.choice([
        f"What is {first} {rng.choice(['plus', 'minus', 'times', '+', '-', '*'])} {second}?",
        f"Translate {rng.choice(words.SECRETS)} into {rng.choice(['French', 'German', 'Spanish', 'Latin'])}.",
        f"Write a {rng.choice(['Python', 'Java', 'Rust'])} program.", "Who won the match?", "What time is it?",
        f"What is the weather in {rng.choice(words.CITIES)}?", "Who is the president?", "What is the meaning of life?",
        f"What is the capital of {rng.choice(UNKNOWN_COUNTRIES)}?", f"How far is {rng.choice(words.CITIES)} from here?",
        f"How old is {rng.choice(words.NAMES)}?", "Who wrote this book?", "How much does it cost?",
    ])  # fmt: skip
    return _free(rng, "decline", question, rng.choice(SORRY), f"{question}", [])


TASKS: list[tuple[Generator, float]] = [
    (story, 6.0), (describe, 2.5), (plan, 2.5), (listing, 2.0), (cook, 2.0), (advice, 1.5),
    (poem, 1.5), (small_talk, 2.0), (decline, 1.5),
]  # fmt: skip
