"""Draws a picture of each pattern: `python docs/pictures/patterns.py` writes them beside this file.

A pattern is evaluated for 16 by 16 positions; queries go down, keys across, and allowed pairs are
blue.
A test compares the pictures with what the patterns answer.
"""

import os
import pathlib

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

from keras_attention import patterns

HERE = pathlib.Path(__file__).parent
LENGTH, CELL, GAP = 16, 7, 1
STEP = CELL + GAP
# Both can be told apart on a white page and on a dark one.
SEEN, UNSEEN = "#4a7fc4", "#88888830"

SHOWN = {
    "causal": patterns.Causal(),
    "sliding_window": patterns.SlidingWindow(2, 1),
    "dilated": patterns.Dilated(3),
    "strided": patterns.Strided(4),
    "prefix": patterns.Prefix(4),
    "block": patterns.Block(4),
    "global": patterns.Global(2),
    "random_blocks": patterns.RandomBlocks(16, 2, 2),
    "bigbird": patterns.BigBird(16, 2, 1),
    "global_window": patterns.SlidingWindow(1, 1) | patterns.Global(2),
    "causal_window": patterns.Causal() & patterns.SlidingWindow(3, 0),
    "prefix_language_model": patterns.Causal() | patterns.Prefix(5),
    "dilated_window": patterns.SlidingWindow(4, 4) & patterns.Dilated(2),
    "not_block": ~patterns.Block(4),
    "grid_window": patterns.GridWindow((4, 4), 2),
    "shifted_window": patterns.GridWindow((4, 4), 2, shift=1),
    "neighborhood": patterns.Neighborhood((4, 4), 3),
    "axial": patterns.Axial((4, 4)),
}


def answers(pattern):
    """Booleans (16, 16): which key each query sees."""
    positions = np.arange(LENGTH)
    return keras.ops.convert_to_numpy(pattern(positions, positions))


def svg(seen):
    """The picture of booleans (T, S)."""
    size = STEP * LENGTH - GAP
    paths = "".join(
        f'<path fill="{color}" d="{_cells(seen == which)}"/>'
        for which, color in ((False, UNSEEN), (True, SEEN))
    )
    view = f'viewBox="0 0 {size} {size}" width="{size}" height="{size}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {view}>{paths}</svg>\n'


def _cells(where):
    """The outlines of the cells that are True."""
    return "".join(
        f"M{STEP * key} {STEP * query}h{CELL}v{CELL}h-{CELL}z" for query, key in np.argwhere(where)
    )


def main():
    """Writes the pictures beside this file."""
    for name, pattern in SHOWN.items():
        (HERE / f"pattern_{name}.svg").write_text(svg(answers(pattern)), encoding="utf-8")
        print(f"pattern_{name}.svg")


if __name__ == "__main__":
    main()
