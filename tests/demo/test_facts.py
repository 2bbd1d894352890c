"""The facts tables against listings that were written down separately."""

import calendar

from demo import facts

CITY_TO_COUNTRY = """Athens Greece; Bangkok Thailand; Beijing China; Berlin Germany; Brussels Belgium;
Bucharest Romania; Budapest Hungary; Buenos Aires Argentina; Cairo Egypt; Copenhagen Denmark;
Dublin Ireland; Havana Cuba; Helsinki Finland; Lima Peru; Lisbon Portugal; Madrid Spain;
Nairobi Kenya; Oslo Norway; Ottawa Canada; Paris France; Rome Italy; Santiago Chile;
Stockholm Sweden; Tokyo Japan; Vienna Austria; Warsaw Poland"""
BY_CONTINENT = {
    "Africa": {"Egypt", "Kenya"},
    "Asia": {"China", "Japan", "Thailand"},
    "North America": {"Canada", "Cuba"},
    "South America": {"Argentina", "Chile", "Peru"},
}
ATOMIC_SYMBOLS = """1 H hydrogen, 2 He helium, 6 C carbon, 7 N nitrogen, 8 O oxygen, 10 Ne neon,
11 Na sodium, 20 Ca calcium, 26 Fe iron, 29 Cu copper, 30 Zn zinc, 47 Ag silver, 50 Sn tin,
79 Au gold, 82 Pb lead"""
YOUNG_TO_PARENT = """calf cow, chick hen, cub lion, duckling duck, fawn deer, foal horse, gosling goose,
joey kangaroo, kid goat, kitten cat, lamb sheep, piglet pig, puppy dog, tadpole frog"""
# sizes in a common base unit per kind
BASE = {
    "second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800,
    "month": 1, "year": 12, "decade": 120, "century": 1200,
    "millimetre": 1, "centimetre": 10, "metre": 1000, "kilometre": 10**6,
    "gram": 1, "kilogram": 1000, "tonne": 10**6, "millilitre": 1, "litre": 1000,
    "bit": 1, "byte": 8, "kibibyte": 8 * 2**10, "mebibyte": 8 * 2**20,
    "inch": 1, "foot": 12, "yard": 36, "item": 1, "dozen": 12,
}  # fmt: skip
SINGULAR = {"inches": "inch", "feet": "foot", "centuries": "century"}
ORIN = {  # module: memory in GB, CUDA cores = SMs x 128, CPU cores
    "AGX Orin 64GB": (64, 16 * 128, 12),
    "AGX Orin 32GB": (32, 14 * 128, 8),
    "Orin NX 16GB": (16, 8 * 128, 8),
    "Orin Nano 8GB": (8, 8 * 128, 6),
}
ANTONYM_PAIRS = """big small, clean dirty, early late, fast slow, first last, full empty, happy sad,
hard soft, high low, hot cold, left right, light dark, long short, loud quiet, near far, old young,
open closed, rich poor, strong weak, thick thin, true false, wet dry, wide narrow"""


def _pairs(text: str, separator: str = ",") -> list[list[str]]:
    return [item.split(maxsplit=1) for item in text.replace("\n", " ").split(separator)]


def test_capitals_agree_with_the_listing_by_city() -> None:
    listed = {}
    for item in CITY_TO_COUNTRY.replace("\n", " ").split(";"):
        city, country = item.strip().rsplit(" ", 1)
        listed[country] = city
    assert listed == facts.CAPITALS


def test_continents_agree_with_the_listing_by_continent() -> None:
    for country, continent in facts.CONTINENTS.items():
        listed = [name for name, members in BY_CONTINENT.items() if country in members]
        assert (listed or ["Europe"]) == [continent], country
    assert facts.CONTINENTS.keys() == facts.CAPITALS.keys()


def test_units_follow_from_base_units() -> None:
    for large, number, small in facts.UNITS:
        one = SINGULAR.get(small, small.removesuffix("s"))
        if (large, one) in {("year", "month"), ("decade", "year"), ("century", "year")}:
            assert BASE[large] == number * BASE[one]
        else:
            assert BASE[large] == number * BASE[one], large


def test_elements_agree_with_the_periodic_table() -> None:
    listed = {
        name: symbol for _, symbol, name in (entry.split() for entry in ATOMIC_SYMBOLS.split(","))
    }
    assert listed == facts.ELEMENTS


def test_young_animals_and_opposites_agree_with_reverse_listings() -> None:
    assert {parent: young for young, parent in _pairs(YOUNG_TO_PARENT)} == facts.YOUNG_ANIMALS
    assert dict(map(tuple, _pairs(ANTONYM_PAIRS))) == facts.OPPOSITES
    words = [word for pair in facts.OPPOSITES.items() for word in pair]
    assert len(words) == len(set(words)), "an opposite must be unique in both directions"


def test_weekdays_and_months_agree_with_the_calendar_module() -> None:
    assert list(calendar.day_name) == facts.WEEKDAYS
    assert list(calendar.month_name)[1:] == facts.MONTHS


def test_planets_are_ordered_by_distance_from_the_sun() -> None:
    distance = {"Neptune": 30.1, "Uranus": 19.2, "Saturn": 9.5, "Jupiter": 5.2, "Mars": 1.52,
                "Earth": 1.0, "Venus": 0.72, "Mercury": 0.39}  # fmt: skip
    assert sorted(distance, key=distance.__getitem__) == facts.PLANETS


def test_board_figures_follow_from_the_module_table() -> None:
    for board, what, value in facts.BOARDS:
        memory_gb, cuda_cores, cpu_cores = ORIN[board]
        expected = {
            "memory": f"{memory_gb} GB",
            "CUDA cores": str(cuda_cores),
            "CPU cores": str(cpu_cores),
        }
        assert value == expected[what], (board, what)


def test_definitions_are_single_clauses_with_a_closing_sentence() -> None:
    for term, (definition, more) in facts.CONCEPTS.items():
        assert not definition.endswith("."), term
        assert more.endswith(".") and more[0].isupper(), term
