"""What is measured: the sizes of an attention, and the rows of the table."""

import collections
import dataclasses


@dataclasses.dataclass(frozen=True)
class Case:
    """The sizes of an attention, and what is done with it."""

    batch: int
    length: int
    features: int
    heads: int
    training: bool = True
    padding: bool = False
    causal: bool = False
    dropout: float = 0.0
    window: int | None = None  # keys seen to either side
    max_distance: int | None = None
    bias: bool = False  # an input that is added to scores, (1, H, T, T)
    position: str | None = None
    dtype: str = "float32"
    xla: bool = False

    @property
    def key_dim(self):
        return self.features // self.heads

    @property
    def policy(self):
        return self.dtype if self.dtype == "float32" else f"mixed_{self.dtype}"

    def describe(self):
        window = self.window and f"SlidingWindow({self.window}, {self.window})"
        parts = [
            f"B{self.batch} T{self.length} D{self.features} H{self.heads}",
            "training step" if self.training else "forward",
            self.padding and "padding mask",
            self.causal and "causal",
            self.dropout and f"dropout {self.dropout}",
            window,
            self.max_distance and f"Shaw k={self.max_distance}",
            self.bias and "additive bias",
            self.position,
            self.dtype != "float32" and self.dtype,
            self.xla and "XLA",
        ]
        return ", ".join(part for part in parts if part)


# `prepare(case)` gives a function that runs once, waits, and returns a tuple of arrays, the first
# of which two sides that compute the same agree on.
Contestant = collections.namedtuple("Contestant", "label prepare")


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    work: str
    ours: tuple  # (contestant, case)
    other: tuple | None
    figure: str = "time"  # or "memory"
    same: bool = True  # whether both compute the same
    heavy: bool = False  # whether the other is measured only on request

    @property
    def sides(self):
        return {"ours": self.ours, **({"other": self.other} if self.other else {})}

    @property
    def dtype(self):
        return self.ours[1].dtype
