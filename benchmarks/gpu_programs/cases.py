"""What a row of the table is, and its sizes."""

import dataclasses
import typing


@dataclasses.dataclass(frozen=True)
class Case:
    """A batch of sequences of 512 features, for 8 heads of 64."""

    length: int = 8192
    batch: int = 2
    features: int = 512
    heads: int = 8
    padding: bool = False
    training: bool = True
    dtype: str = "bfloat16"

    @property
    def elements(self):
        return self.batch * self.length * self.features


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        compile: makes the `Compiled` program.
        other: the name of the row of Keras's or KerasHub's layer that it is compared with, or None.
        copies_of: the elements of an array of all heads.
        fused: whether it is to have cuDNN's kernel on JAX.
        goals: whether the goals of the layer are its own.
    """

    name: str
    compile: typing.Callable
    other: str | None = None
    copies_of: int | None = None
    fused: bool = False
    goals: bool = False
