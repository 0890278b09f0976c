"""Made-up dialogues, so that the example runs with no data at all.

Speakers ask where a thing is, and others answer, with names before their lines as in a play: a
small model learns the spelling and the turns of it in a minute.
"""

import numpy as np

SPEAKERS = ("ANNA", "BRUNO", "CLARA", "DAVID", "ELENA", "FELIX")
THINGS = ("lantern", "ladder", "letter", "basket", "blanket", "compass", "violin", "kettle")
OWNERS = ("the baker", "the captain", "the gardener", "the miller", "the teacher", "the widow")
PLACES = (
    "behind the old barn",
    "under the stone bridge",
    "on the kitchen table",
    "in the attic",
    "beside the well",
    "at the edge of the forest",
)
QUESTIONS = (
    "Where did you put the {thing}?",
    "Have you seen the {thing} of {owner}?",
    "Who took the {thing} to {owner}?",
    "Is the {thing} still {place}?",
)
ANSWERS = (
    "The {thing} is {place}, where {owner} left it.",
    "I saw it {place} this morning.",
    "Ask {owner}; I never touched the {thing}.",
    "It was {place}, but {owner} came for it.",
    "No, and {owner} will not be pleased.",
)


def generate(turns=2000, seed=0):
    """So many questions and answers, as one text."""
    rng = np.random.default_rng(seed)
    return "".join(_turn(rng) for _ in range(turns))


def _turn(rng):
    asking, answering = rng.choice(SPEAKERS, size=2, replace=False)
    words = {"thing": rng.choice(THINGS), "owner": rng.choice(OWNERS), "place": rng.choice(PLACES)}
    question = rng.choice(QUESTIONS).format(**words)
    answer = rng.choice(ANSWERS).format(**words)
    return f"{asking}:\n{question}\n\n{answering}:\n{answer}\n\n"
