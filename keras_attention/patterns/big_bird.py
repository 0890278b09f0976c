"""`BigBird`: near blocks, random blocks, and the first and the last block for all."""

from keras_attention.patterns.base import Or, Pattern
from keras_attention.patterns.built_in import Block, Global, RandomBlocks


class BigBird(Or):
    """Attention of BigBird (Zaheer et al. 2020, section 2), in blocks as in its appendix D.

    Each block of `size` queries sees itself and the blocks before and after it, `count` random
    ones of all others, and the first and the last of `length` positions, which see all:

        Block(size, reach=1)
        | Global(size, since=(⌈length / size⌉ − 1) · size)
        | RandomBlocks(length, size, count, seed, distance=2, ends=1)

    This is the construction with global tokens of the text itself (BigBird-ITC). Only the pairs
    that are seen are computed, in time proportional to the length. All heads have the same random
    blocks, which the seed draws, and files with it; give each layer another one.

    Args:
        length: the number of positions. A shorter sequence lacks the blocks beyond its end, the
            last one too; positions from `length` on are as the last block.
        size, count, seed: as in `RandomBlocks`.

    Raises:
        ValueError: a number is not as described, or there are not so many other blocks.

    >>> from keras_attention import patterns
    >>> pattern = patterns.BigBird(length=20, size=2, count=1, seed=1)
    >>> [j for j in range(20) if pattern(8, j)]
    [0, 1, 4, 5, 6, 7, 8, 9, 10, 11, 18, 19]
    """

    def __init__(self, length: int, size: int, count: int, seed: int = 0):
        random = RandomBlocks(length, size, count, seed, distance=2, ends=1)
        self.length, self.size = random.length, random.size
        self.count, self.seed = random.count, random.seed
        since = (-(-random.length // random.size) - 1) * random.size
        super().__init__([Block(random.size, reach=1), Global(random.size, since), random])

    # As of a pattern with arguments of its own.
    _key = Pattern._key
    __repr__ = Pattern.__repr__
