"""Every statement about the world that the demo text makes, as plain tables.

`tests/demo/test_facts.py` checks these tables against listings written down separately.
"""

from __future__ import annotations

CAPITALS: dict[str, str] = {
    "Argentina": "Buenos Aires",
    "Austria": "Vienna",
    "Belgium": "Brussels",
    "Canada": "Ottawa",
    "Chile": "Santiago",
    "China": "Beijing",
    "Cuba": "Havana",
    "Denmark": "Copenhagen",
    "Egypt": "Cairo",
    "Finland": "Helsinki",
    "France": "Paris",
    "Germany": "Berlin",
    "Greece": "Athens",
    "Hungary": "Budapest",
    "Ireland": "Dublin",
    "Italy": "Rome",
    "Japan": "Tokyo",
    "Kenya": "Nairobi",
    "Norway": "Oslo",
    "Peru": "Lima",
    "Poland": "Warsaw",
    "Portugal": "Lisbon",
    "Romania": "Bucharest",
    "Spain": "Madrid",
    "Sweden": "Stockholm",
    "Thailand": "Bangkok",
}

CONTINENTS: dict[str, str] = {
    "Argentina": "South America",
    "Austria": "Europe",
    "Belgium": "Europe",
    "Canada": "North America",
    "Chile": "South America",
    "China": "Asia",
    "Cuba": "North America",
    "Denmark": "Europe",
    "Egypt": "Africa",
    "Finland": "Europe",
    "France": "Europe",
    "Germany": "Europe",
    "Greece": "Europe",
    "Hungary": "Europe",
    "Ireland": "Europe",
    "Italy": "Europe",
    "Japan": "Asia",
    "Kenya": "Africa",
    "Norway": "Europe",
    "Peru": "South America",
    "Poland": "Europe",
    "Portugal": "Europe",
    "Romania": "Europe",
    "Spain": "Europe",
    "Sweden": "Europe",
    "Thailand": "Asia",
}

# (larger unit, number, smaller unit)
UNITS: list[tuple[str, int, str]] = [
    ("minute", 60, "seconds"),
    ("hour", 60, "minutes"),
    ("day", 24, "hours"),
    ("week", 7, "days"),
    ("year", 12, "months"),
    ("decade", 10, "years"),
    ("century", 100, "years"),
    ("kilometre", 1000, "metres"),
    ("metre", 100, "centimetres"),
    ("centimetre", 10, "millimetres"),
    ("kilogram", 1000, "grams"),
    ("tonne", 1000, "kilograms"),
    ("litre", 1000, "millilitres"),
    ("byte", 8, "bits"),
    ("kibibyte", 1024, "bytes"),
    ("mebibyte", 1024, "kibibytes"),
    ("foot", 12, "inches"),
    ("yard", 3, "feet"),
    ("dozen", 12, "items"),
]

OPPOSITES: dict[str, str] = {
    "hot": "cold",
    "big": "small",
    "fast": "slow",
    "light": "dark",
    "early": "late",
    "open": "closed",
    "full": "empty",
    "high": "low",
    "hard": "soft",
    "wet": "dry",
    "happy": "sad",
    "loud": "quiet",
    "old": "young",
    "long": "short",
    "wide": "narrow",
    "clean": "dirty",
    "rich": "poor",
    "true": "false",
    "left": "right",
    "near": "far",
    "thick": "thin",
    "strong": "weak",
    "first": "last",
}

YOUNG_ANIMALS: dict[str, str] = {
    "dog": "puppy",
    "cat": "kitten",
    "cow": "calf",
    "horse": "foal",
    "sheep": "lamb",
    "pig": "piglet",
    "goat": "kid",
    "duck": "duckling",
    "goose": "gosling",
    "hen": "chick",
    "lion": "cub",
    "deer": "fawn",
    "frog": "tadpole",
    "kangaroo": "joey",
}

ELEMENTS: dict[str, str] = {
    "hydrogen": "H",
    "helium": "He",
    "carbon": "C",
    "nitrogen": "N",
    "oxygen": "O",
    "neon": "Ne",
    "sodium": "Na",
    "calcium": "Ca",
    "iron": "Fe",
    "copper": "Cu",
    "zinc": "Zn",
    "silver": "Ag",
    "tin": "Sn",
    "gold": "Au",
    "lead": "Pb",
}

WEEKDAYS: list[str] = [
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
]
MONTHS: list[str] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]
PLANETS: list[str] = [
    "Mercury",
    "Venus",
    "Earth",
    "Mars",
    "Jupiter",
    "Saturn",
    "Uranus",
    "Neptune",
]

# (board, what is asked, answer): module figures of the Jetson Orin family.
BOARDS: list[tuple[str, str, str]] = [
    ("AGX Orin 64GB", "memory", "64 GB"),
    ("AGX Orin 64GB", "CUDA cores", "2048"),
    ("AGX Orin 64GB", "CPU cores", "12"),
    ("AGX Orin 32GB", "memory", "32 GB"),
    ("AGX Orin 32GB", "CUDA cores", "1792"),
    ("AGX Orin 32GB", "CPU cores", "8"),
    ("Orin NX 16GB", "memory", "16 GB"),
    ("Orin NX 16GB", "CUDA cores", "1024"),
    ("Orin NX 16GB", "CPU cores", "8"),
    ("Orin Nano 8GB", "memory", "8 GB"),
    ("Orin Nano 8GB", "CUDA cores", "1024"),
    ("Orin Nano 8GB", "CPU cores", "6"),
]

# term -> (definition that completes "<term> is ...", a second true sentence)
CONCEPTS: dict[str, tuple[str, str]] = {
    "a token": (
        "a piece of text that a language model reads or writes as one unit",
        "A token can be a whole word, a part of a word or a single digit.",
    ),
    "a tokenizer": (
        "the part that cuts text into tokens and joins tokens back into text",
        "Every token has a number, and the model only sees these numbers.",
    ),
    "a vocabulary": (
        "the list of all tokens that a model can use",
        "The model gives every entry of the list a score at each step.",
    ),
    "an embedding": (
        "a vector of numbers that stands for a token",
        "The model looks the vector up before its first layer.",
    ),
    "a language model": (
        "a program that predicts the next token of a text",
        "It writes longer text by predicting again and again.",
    ),
    "attention": (
        "the step in which a token looks back at earlier tokens",
        "It compares a query with keys and mixes the values that fit.",
    ),
    "the KV cache": (
        "the memory of keys and values of the tokens that were already read",
        "It saves the model from reading the whole text again for each new token.",
    ),
    "prefill": (
        "the phase in which the model reads the whole prompt",
        "All prompt tokens can be processed together, so this phase is limited by compute.",
    ),
    "decoding": (
        "the phase in which the model writes its reply token by token",
        "Each step reads all the weights, so this phase is limited by memory bandwidth.",
    ),
    "greedy decoding": (
        "the rule that always takes the token with the highest score",
        "The same prompt then always gives the same reply.",
    ),
    "temperature": (
        "a number that makes sampling more or less random",
        "A low value is careful, and a high value is more varied.",
    ),
    "top-k sampling": (
        "sampling from the k tokens with the highest scores",
        "All other tokens get a probability of zero.",
    ),
    "top-p sampling": (
        "sampling from the smallest set of tokens whose probabilities sum to at least p",
        "The set is small when the model is sure and large when it is not.",
    ),
    "speculative decoding": (
        "a method that guesses several tokens cheaply and checks them in one pass",
        "The output stays exactly that of the large model.",
    ),
    "self-speculative decoding": (
        "speculative decoding in which the model makes the drafts itself",
        "No second model is needed.",
    ),
    "a draft token": (
        "a guessed token that the model has not checked yet",
        "It is kept when the check agrees and dropped when it does not.",
    ),
    "the acceptance rate": (
        "the share of draft tokens that pass the check",
        "A higher rate means more tokens for each pass.",
    ),
    "an MTP head": (
        "a small extra block that predicts one more token ahead",
        "MTP stands for multi-token prediction.",
    ),
    "verification": (
        "the pass in which the full model checks the draft tokens",
        "All drafts of a step are checked together.",
    ),
    "quantization": (
        "storing weights with fewer bits",
        "It saves memory and bandwidth at the price of a small error.",
    ),
    "latency": (
        "the time until a result arrives",
        "For a chat it is the wait before the first word.",
    ),
    "throughput": (
        "the amount of work that is done in a given time",
        "For a language model it is counted in tokens per second.",
    ),
    "memory bandwidth": (
        "the amount of data that memory can move in a second",
        "It limits how fast a model can write on a small board.",
    ),
    "a thinking budget": (
        "a limit on the number of tokens that a model may think",
        "When it is spent, the thinking is closed and the answer follows.",
    ),
    "a chat template": (
        "the pattern that turns messages into one text for the model",
        "It marks who is speaking in each turn.",
    ),
    "the context length": (
        "the largest number of tokens that a model can look at together",
        "Prompt and reply share it.",
    ),
    "a checkpoint": (
        "a set of files that holds the weights of a model",
        "A config file beside the weights describes the layers.",
    ),
    "sparse attention": (
        "attention that reads only a part of the cache",
        "It saves time when the text is long.",
    ),
    "a stop token": (
        "a token that ends the reply",
        "The model writes it when it has nothing more to say.",
    ),
    "a system prompt": (
        "a message that tells the model how to behave",
        "It stands before the first question.",
    ),
}
