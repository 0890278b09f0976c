"""Settings by name. Nothing here imports Keras."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The sizes of a model and its training: the defaults of the options of these names.

    Attributes:
        layers, heads, dim: blocks, heads of each, and features.
        context: tokens of a training window, and the most that generation looks back to.
        batch_size: windows per step.
        steps: optimizer steps.
        measure_every: steps between two measurements, each with a checkpoint.
        dropout: its rate, on embeddings, attention weights and branches.
        learning_rate: the highest; the schedule ends at a tenth of it.
        warmup_steps: the step that has it.
        positions: a name of `models.POSITIONS`.
    """

    layers: int | None = 6
    heads: int | None = 6
    dim: int | None = 192
    context: int = 128
    batch_size: int = 32
    steps: int = 2000
    measure_every: int = 250
    dropout: float | None = 0.1
    learning_rate: float = 2e-3
    warmup_steps: int = 100
    positions: str | None = "rotary"


RECIPES = {
    "default": Recipe(),
    # Of nanoGPT's README, for a CPU.
    "nanogpt": Recipe(
        layers=4, heads=4, dim=128, context=64, batch_size=12, dropout=0.0, learning_rate=1e-3
    ),
    "small": Recipe(
        layers=2,
        heads=2,
        dim=64,
        context=32,
        batch_size=16,
        steps=100,
        measure_every=50,
        warmup_steps=20,
        dropout=0.0,
    ),
}
# What a folder of weights has settled already.
OF_THE_MODEL = ("layers", "heads", "dim", "dropout", "positions")
PRETRAINED = Recipe(
    **dict.fromkeys(OF_THE_MODEL),
    batch_size=8,
    steps=500,
    measure_every=100,
    learning_rate=5e-5,
    warmup_steps=50,
)
