"""What tests of docs/migration share: the code of a page, and layers that several packages had.

The old packages no longer run, so each is read here: its equations in NumPy, written from the
version that the page names. What the pages define is taken from the pages.
"""

import functools

import keras
import numpy as np

from tests.arrays import random
from tests.definition import softmax
from tests.doctests import BLOCK, ROOT

ops = keras.ops
FOLDER = ROOT / "docs/migration"

B, T, S, D, E = 2, 5, 7, 8, 6


@functools.cache
def page(name):
    """The functions and classes that a page defines, without the rest of the page."""
    text = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
    names = {"__name__": f"migration_{name}"}
    for block in BLOCK.findall(text):
        kept, keeping = [], False
        for line in block.splitlines():
            if line and not line[0].isspace() and not line.startswith(")"):
                keeping = line.startswith(("import ", "from ", "def ", "class ", "@"))
            if keeping:
                kept.append(line)
        exec("\n".join(kept), names)
    return names


def weights(*shapes):
    return [random(*shape, seed=10 + seed) for seed, shape in enumerate(shapes)]


def close(ours, expected, tolerance=2e-5):
    np.testing.assert_allclose(ops.convert_to_numpy(ours), expected, rtol=tolerance, atol=tolerance)


X, MEMORY, KEY = random(B, T, D), random(B, S, D, seed=1), random(B, S, D, seed=2)
PADDING = np.array([[True] * 5, [True] * 3 + [False] * 2])
MEMORY_PADDING = np.arange(S) < np.array([[S], [3]])


# keras-self-attention 0.51.0: seq_self_attention.py, scaled_dot_attention.py,
# seq_weighted_attention.py


def seq_self_attention(x, e, width=None, history_only=False, activation=None, mask=None):
    """Output and weights of `SeqSelfAttention.call`, from what its emission gives."""
    length = x.shape[1]
    e = e if activation is None else activation(e)
    if history_only and width is None:
        width = 10**9
    if width is not None:
        lower = np.arange(length)[:, None] - (width - 1 if history_only else width // 2)
        near = (lower <= np.arange(length)) & (np.arange(length) < lower + width)
        e = e - 10000.0 * ~near
    if mask is not None:
        padded = 1.0 - mask
        e = e - 10000.0 * padded[:, :, None] * padded[:, None, :]
    a = softmax(e)
    return a @ x, a


def additive_emission(x, Wt, Wx, bh, Wa, ba):
    h = np.tanh((x @ Wt)[:, :, None] + (x @ Wx)[:, None] + bh)
    return (h @ Wa + ba)[..., 0]


def multiplicative_emission(x, Wa, ba):
    return (x @ Wa) @ np.swapaxes(x, 1, 2) + ba[0]


def scaled_dot_product_attention(query, key, value, history_only=False, mask=None):
    e = query @ np.swapaxes(key, -1, -2) / np.sqrt(query.shape[-1])
    if history_only:
        later = np.arange(key.shape[-2]) > np.arange(query.shape[-2])[:, None]
        e = e - 10000.0 * later
    if mask is not None:
        e = e - 10000.0 * (1.0 - mask[:, None])
    return softmax(e) @ value


# keras-multi-head 0.29.0: multi_head_attention.py, multi_head.py


def split(x, heads):
    """(B, T, F) as (B · heads, T, F / heads)."""
    batch, length, size = x.shape
    x = x.reshape(batch, length, heads, size // heads).transpose(0, 2, 1, 3)
    return x.reshape(batch * heads, length, size // heads)


def join(x, heads):
    rows, length, size = x.shape
    x = x.reshape(rows // heads, heads, length, size).transpose(0, 2, 1, 3)
    return x.reshape(rows // heads, length, heads * size)
