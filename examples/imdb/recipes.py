"""What each model is trained with. Nothing here imports Keras."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The defaults of a model.

    Attributes:
        vocabulary_size, max_length, batch_size, epochs: what the options of these names default to.
        limited_epochs: what `--epochs` defaults to with `--limit`, if not to `epochs`. Positions in
            `post` are so much larger than its new word vectors that it learns next to nothing in
            the first hundred steps, most of an epoch of 4,000 reviews.
        window: which tokens of a longer review are kept: the "last", or "both_ends".
        punctuation: whether punctuation marks count as words.
        min_reviews: how many training reviews a word or n-gram must occur in.
        ngrams: the number of words of the longest n-grams, or 0 for words alone.
        positions: whether a model that can do without is given positions.
        learning_rate: what the option of this name defaults to: the highest of a schedule.
    """

    vocabulary_size: int | None
    max_length: int
    batch_size: int
    epochs: int
    window: str
    punctuation: bool = False
    min_reviews: int = 1
    ngrams: int = 0
    positions: bool = False
    limited_epochs: int | None = None
    learning_rate: float | None = None


_POST = Recipe(vocabulary_size=20_000, max_length=80, batch_size=32, epochs=2, window="last")

RECIPES = {
    "post": _POST,
    "post-positions": dataclasses.replace(_POST, positions=True, limited_epochs=3),
    "transformer": Recipe(
        vocabulary_size=20_000, max_length=200, batch_size=32, epochs=3, window="both_ends"
    ),
    "best": Recipe(
        vocabulary_size=100_000,
        max_length=1024,
        batch_size=128,
        epochs=3,
        window="both_ends",
        punctuation=True,
        min_reviews=2,
        ngrams=3,
    ),
}


# Of a model of a folder: all its weights, or adapters (Devlin et al. 2019; Hu et al. 2021).
PRETRAINED = Recipe(
    vocabulary_size=None,
    max_length=256,
    batch_size=16,
    epochs=3,
    window="both_ends",
    learning_rate=2e-5,
)
LORA = dataclasses.replace(PRETRAINED, learning_rate=5e-4)


def describe_data(figures):
    """What the results were measured on, in one line."""
    sizes = figures["sizes"]
    limit = figures["settings"]["limit"]
    limited = "" if limit is None else f", limited to {limit:,}"
    return (
        f"{figures['dataset']}{limited}: {sizes['train']:,} training and {sizes['test']:,} "
        "test reviews"
    )
