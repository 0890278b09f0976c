"""A synthetic stand-in for the reviews, so that the example runs with no data at all. Not IMDB.

Short reviews of one to four remarks and a verdict. Remarks may be negated and may contradict the
verdict, and one label in twenty is wrong, so that a model has something to learn and something that
it cannot.
"""

import numpy as np

SUBJECTS = (
    "acting",
    "plot",
    "script",
    "music",
    "ending",
    "dialogue",
    "photography",
    "pacing",
    "story",
    "cast",
    "direction",
    "humor",
    "opening scene",
    "main character",
    "villain",
    "editing",
)
PRAISE = (
    "superb",
    "moving",
    "clever",
    "gripping",
    "charming",
    "brilliant",
    "delightful",
    "honest",
    "beautiful",
    "subtle",
    "funny",
    "convincing",
    "memorable",
    "fresh",
)
BLAME = (
    "dull",
    "lazy",
    "predictable",
    "clumsy",
    "wooden",
    "tedious",
    "silly",
    "shallow",
    "awful",
    "pointless",
    "stale",
    "unconvincing",
    "forgettable",
    "noisy",
)
REMARKS = (
    "The {subject} was {word}.",
    "I found the {subject} {word}.",
    "What a {word} {subject}!",
    "Everybody talks about the {subject}, and it is {word}.",
)
NEGATED_REMARKS = (
    "The {subject} was not {word} at all.",
    "I never found the {subject} {word}.",
    "Nobody could call the {subject} {word}.",
)
ASIDES = (
    "I saw it on a rainy Sunday with my brother.",
    "It runs for about two hours.",
    "The book came out years ago.",
    "There were six people in the cinema.",
    "My neighbor had recommended it.",
)
GOOD_VERDICTS = (
    "I would watch it again.",
    "Do not miss it.",
    "One of the best of the year.",
    "Warmly recommended.",
)
BAD_VERDICTS = (
    "I would not watch it again.",
    "Do not bother.",
    "One of the worst of the year.",
    "I want my money back.",
)
AGREEMENT, NEGATION, VERDICT, WRONG_LABEL = 0.8, 0.25, 0.5, 0.05


def generate(count, seed):
    """`count` texts and their labels, an integer array with 1 for positive."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(count) % 2)
    texts = [_review(rng, positive=bool(label)) for label in labels]
    wrong = rng.random(count) < WRONG_LABEL
    return texts, np.where(wrong, 1 - labels, labels)


def _review(rng, positive):
    agreement = rng.random(rng.integers(1, 5)) < AGREEMENT
    sentences = [_remark(rng, praises=positive == agrees) for agrees in agreement]
    if rng.random() < VERDICT:
        sentences.append(_choice(rng, GOOD_VERDICTS if positive else BAD_VERDICTS))
    sentences.insert(rng.integers(len(sentences)), _choice(rng, ASIDES))
    return " ".join(sentences)


def _remark(rng, praises):
    negated = rng.random() < NEGATION
    words = PRAISE if praises != negated else BLAME
    template = _choice(rng, NEGATED_REMARKS if negated else REMARKS)
    return template.format(subject=_choice(rng, SUBJECTS), word=_choice(rng, words))


def _choice(rng, options):
    return options[rng.integers(len(options))]
