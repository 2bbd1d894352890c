"""Word lists that the generators combine freely."""


def _listed(text: str) -> list[str]:
    """The entries of `text`, separated by white space; an underscore stands for a space."""
    return [entry.replace("_", " ") for entry in text.split()]


NAMES = _listed("""
Mia Leo Nora Sam Ada Ben Clara Dan Emma Finn Grace Hugo Iris Jack Kate Liam Maya Noah Olga Paul
Rosa Tom Uma Vera Will Zoe Alice Boris Cora David Elsa Frank Greta Henry Ivan Julia Karl Lena
Marc Nina Oscar Petra Ruth Simon Tara Victor Wendy Anton Bella Carlo
""")

CITIES = _listed("""
Paris Rome Berlin Madrid Oslo Dublin Vienna Lisbon Prague Athens Cairo Tokyo Lima Boston Geneva
Milan Naples Seville Hamburg Porto Lyon Turin Bergen Cork
""")

COLOURS = _listed("""
red blue green yellow orange purple black white brown grey pink silver golden
""")

FOODS = _listed("""
pizza soup rice pasta bread cheese salad noodles pancakes curry fish beans potatoes apples pears
plums cherries grapes lemons carrots onions tomatoes
""")

ANIMALS = _listed("""
fox owl bear rabbit hedgehog squirrel otter mouse wolf badger crow robin beaver deer turtle frog
cat dog pony goose
""")

OBJECTS = _listed("""
lamp key coin map bell book box stone ring letter rope basket mirror candle kite drum flute
clock hat bottle button feather
""")

PLACES = _listed("""
forest village harbour garden valley mill library market meadow castle bakery lighthouse bridge
island station orchard school river
""")

ADJECTIVES = _listed("""
small old clever quiet brave curious lazy gentle proud young shy kind hungry cheerful careful
patient
""")

JOBS = _listed("""
teacher baker nurse doctor farmer painter writer driver singer gardener engineer pilot cook
carpenter tailor sailor
""")

HOBBIES = _listed("""
chess painting swimming running reading singing cooking cycling hiking fishing drawing dancing
knitting sailing
""")

INSTRUMENTS = _listed("""
piano violin guitar flute drum harp trumpet cello
""")

SECRETS = _listed("""
maple tiger ocean silver comet pepper velvet anchor meadow rocket cactus marble walnut harbour
saffron pebble lantern thunder willow copper
""")

WEATHER = _listed("""
sunny rainy cloudy windy foggy snowy stormy cold warm mild
""")

FRUITS = _listed("""
apples pears plums cherries grapes lemons oranges peaches bananas melons figs
""")

VEGETABLES = _listed("""
carrots onions tomatoes potatoes peas beans leeks beets spinach cabbage
""")

TOOLS = _listed("""
a_hammer a_saw a_drill a_wrench a_screwdriver a_file a_chisel a_ruler
""")

SPORTS = _listed("""
tennis football hockey rowing cycling swimming running volleyball judo golf
""")
