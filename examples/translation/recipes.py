"""The models by name, with their defaults. Nothing here imports Keras."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A model and its defaults.

    Attributes:
        model: the name of its class in `models`.
        sizes: what it is made with, besides its vocabulary and its dropout.
        small: what of these is less with `--small`.
        warmup_steps: the step that has the highest learning rate.
        learning_rate, schedule, batch_tokens, epochs, dropout, positions, vocabulary_size: what the
            options of these names default to.
    """

    model: str
    sizes: dict
    small: dict
    learning_rate: float
    warmup_steps: int
    batch_tokens: int
    epochs: int
    dropout: float
    schedule: str = "inverse-sqrt"
    positions: str | None = None
    vocabulary_size: int = 6000


def _recurrent(mode):
    return Recipe(
        model="Recurrent",
        sizes={"mode": mode, "dim": 128, "units": 256},
        small={"dim": 64, "units": 64},
        learning_rate=2e-3,
        warmup_steps=500,
        batch_tokens=2048,
        epochs=15,
        dropout=0.2,
    )


RECIPES = {
    "transformer": Recipe(
        model="Transformer",
        sizes={"layers": 4, "dim": 128, "intermediate_dim": 256, "num_heads": 4},
        small={"layers": 1, "dim": 64, "intermediate_dim": 128, "num_heads": 2},
        learning_rate=3e-3,
        warmup_steps=1000,
        batch_tokens=1024,
        epochs=10,
        dropout=0.1,
        schedule="cosine",
        positions="shaw",
    ),
    "bahdanau": _recurrent("bahdanau"),
    "luong": _recurrent("luong"),
}
