"""Made-up English and German sentences, so that the example runs with no data at all. Not Multi30k.

Pairs such as "Two happy women run near a river." and "Zwei fröhliche Frauen rennen an
einem Fluss.": German needs genders and endings that English does not have, so there is something
to learn, and a small model learns it in a minute.
"""

import numpy as np

# English and German singular, then plural; and the gender of the German word.
PEOPLE = (
    ("man", "Mann", "men", "Männer", "m"),
    ("woman", "Frau", "women", "Frauen", "f"),
    ("child", "Kind", "children", "Kinder", "n"),
    ("girl", "Mädchen", "girls", "Mädchen", "n"),
    ("boy", "Junge", "boys", "Jungen", "m"),
    ("dog", "Hund", "dogs", "Hunde", "m"),
    ("cat", "Katze", "cats", "Katzen", "f"),
)
# English, and the German stem that endings come after.
ADJECTIVES = (
    ("young", "jung"),
    ("old", "alt"),
    ("small", "klein"),
    ("big", "groß"),
    ("happy", "fröhlich"),
    ("tired", "müd"),
)
# English for one and for many, German for one and for many.
VERBS = (
    ("runs", "run", "rennt", "rennen"),
    ("sits", "sit", "sitzt", "sitzen"),
    ("plays", "play", "spielt", "spielen"),
    ("sleeps", "sleep", "schläft", "schlafen"),
    ("waits", "wait", "wartet", "warten"),
    ("jumps", "jump", "springt", "springen"),
)
# English and German.
PLACES = (
    ("near a river", "an einem Fluss"),
    ("on a bench", "auf einer Bank"),
    ("in front of a house", "vor einem Haus"),
    ("under a tree", "unter einem Baum"),
    ("in a garden", "in einem Garten"),
    ("on the street", "auf der Straße"),
)
NUMBERS = (("Two", "Zwei"), ("Three", "Drei"), ("Four", "Vier"))
ARTICLES = {"m": "Ein", "f": "Eine", "n": "Ein"}
ENDINGS = {"m": "er", "f": "e", "n": "es"}


def generate(count, seed):
    """`count` English sentences and their German translations, two lists."""
    rng = np.random.default_rng(seed)
    pairs = [_pair(rng) for _ in range(count)]
    return [english for english, _ in pairs], [german for _, german in pairs]


def _pair(rng):
    person, adjective, verb = _choice(rng, PEOPLE), _choice(rng, ADJECTIVES), _choice(rng, VERBS)
    place = _choice(rng, PLACES)
    many, described = rng.random() < 0.5, rng.random() < 0.7
    if many:
        english, german = _choice(rng, NUMBERS)
        ending = "e"
    else:
        english = "An" if described and adjective[0] == "old" else "A"
        german, ending = ARTICLES[person[4]], ENDINGS[person[4]]
    if described:
        english, german = f"{english} {adjective[0]}", f"{german} {adjective[1]}{ending}"
    english = f"{english} {person[2 * many]} {verb[many]} {place[0]}."
    german = f"{german} {person[2 * many + 1]} {verb[2 + many]} {place[1]}."
    return english, german


def _choice(rng, options):
    return options[rng.integers(len(options))]
