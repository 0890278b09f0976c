"""A synthetic stand-in for the reviews, so that the example runs with no data at all. Not IMDB.

Texts as people type them, from one word to a paragraph, drawn from a grammar. Opinions may be
negated, remarks may contradict the verdict, and one label in fifty is wrong, so that a model has
something to learn and something that it cannot.
"""

import functools
import random
import re

import numpy as np

from examples.imdb.sample_grammar import RULES

WRONG_LABEL, ASIDE, CONTRADICTION, LOWER_CASE = 0.02, 0.1, 0.3, 0.1
# Numbers of opinions in a text, and kinds of them, with how often each occurs. Texts are short: a
# long one has enough other evidence, so a model learns little of each of its words.
COUNTS = {1: 6, 2: 3, 3: 1}
KINDS = {"phrase": 10, "frame": 4, "contrast": 2, "denied": 1.0}
# How people write "isn't": in full, with the apostrophe of typewriters or of books, or without one.
STYLES = {None: 3, "'": 5, "’": 1, "": 1}

_IN_FULL = re.compile(
    r"\b(?:(is|was|are|were|do|does|did|would|could|should|has|have|had|can) ?not"
    r"|(it|that|there|what) is|I (am|have|would)|(you|they|it) will)\b"
)
_BEFORE_VOWEL = re.compile(r"\b([Aa]) (?=[aeiou]|8|11|hour|honest)(?!one |use|uni)")
_PARTS = re.compile(r"<[^>]*>|\[[^\]]*\]|[^<\[]+")


def generate(count, seed):
    """`count` texts and their labels, an integer array with 1 for positive."""
    # Python's generator gives the same numbers with every version of NumPy.
    draw = _Draw(random.Random(seed))
    labels = [draw.random.random() < 0.5 for _ in range(count)]
    texts = [_review(draw, praises) for praises in labels]
    wrong = [draw.random.random() < WRONG_LABEL for _ in range(count)]
    return texts, np.not_equal(labels, wrong).astype("int64")


class _Draw:
    """Draws from lists as from packs of cards: each alternative occurs as often as the others."""

    def __init__(self, random):
        self.random = random
        self._packs = {}

    def __call__(self, options):
        pack = self._packs.get(id(options))
        if not pack:
            pack = self._packs[id(options)] = list(options)
            self.random.shuffle(pack)
        return pack.pop()

    def weighted(self, weights):
        return self.random.choices(list(weights), weights.values())[0]


def _review(draw, praises):
    sentences = []
    count = draw.weighted(COUNTS)
    for number in range(count):
        if count > 1 and draw.random.random() < ASIDE:
            sentences.append(_sentence(draw, "aside", praises))
        if count == 3 and number == 0 and draw.random.random() < CONTRADICTION:
            sentences.append(_sentence(draw, "remark", not praises))
        sentences.append(_sentence(draw, draw.weighted(KINDS), praises))
    text = _BEFORE_VOWEL.sub(r"\1n ", " ".join(sentences))
    apostrophe = draw.weighted(STYLES)
    if apostrophe is not None:
        text = _IN_FULL.sub(_contracted, text).replace("'", apostrophe)
    return text.lower() if draw.random.random() < LOWER_CASE else text


def _sentence(draw, name, praises):
    text = "".join(_expanded(draw, name, praises))
    if text[-1].isalnum():
        text += draw((".", "!", "", "!!", "...", "!!!"))
    return text[0].upper() + text[1:]


def _expanded(draw, name, praises):
    """The pieces of text of a rule's alternative, whose rules are expanded too."""
    pending = [(name, praises)]
    while pending:
        part = pending.pop()
        if isinstance(part, str):
            yield part
            continue
        name, opinion = part
        options = name if isinstance(name, tuple) else _alternatives(name, opinion)
        for part in reversed(draw(options)):
            pending.append(part if isinstance(part, str) else (part[0], opinion == part[1]))


@functools.cache
def _alternatives(name, praises):
    """The alternatives of a rule, as `_parsed` returns them."""
    rule = RULES[name]
    return _parsed(rule if isinstance(rule, str) else rule[0 if praises else 1])


def _parsed(text):
    """Alternatives, tuples of texts and of pairs: a rule or alternatives, and whether it agrees."""
    return tuple(
        tuple(map(_part, _PARTS.findall(alternative)))
        for alternative in re.split(r"\|(?![^\[]*\])", text)
    )


def _part(text):
    if text[0] == "[":
        return _parsed(text[1:-1]), True
    return (text.strip("<!>"), text[1] != "!") if text[0] == "<" else text


def _contracted(match):
    verb, subject, speaks, others = match.groups()
    if verb:
        return "can't" if verb == "can" else f"{verb}n't"
    if subject:
        return f"{subject}'s"
    return f"I'{dict(am='m', have='ve', would='d')[speaks]}" if speaks else f"{others}'ll"
