"""Sentences and weights for pages."""

import numpy as np

SOURCE = ["Two", "dogs", "run", "on", "the", "beach", "."]
TARGET = ["Zwei", "Hunde", "laufen", "am", "Strand", "."]
ODD = [
    "<script>document.title='run'</script>", "</script><b>x</b>", "<!--", "\"'`&amp;", "a\u2028b",
    "\ud800", "\u202eabc", "", " ", "\n", "סלום", "猫", "{{data}}", "\\u003c",
]  # fmt: skip


def weights(*shape, seed=0):
    e = np.exp(2 * np.random.default_rng(seed).normal(size=shape))
    return (e / e.sum(axis=-1, keepdims=True)).astype("float32")
