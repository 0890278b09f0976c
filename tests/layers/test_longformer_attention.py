"""Longformer's attention: its equation, masks, gradients and kernels."""

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention import distribution, inspection
from keras_attention.kernels.tiles import strategies
from tests.arrays import close, random, wide
from tests.layers.small_caches import made

H, G, K, V = 4, 2, 3, 5
B, T, D = 2, 9, 8
X = random(B, T, D)
KEPT = np.arange(T) < np.array([[T], [6]])
NUM_GLOBAL = 2


def layer(**options):
    options = {"num_global": NUM_GLOBAL, "num_key_value_heads": G, "value_dim": V, **options}
    return made(ka.LongformerAttention(H, K, 1, **options), X.shape)


def definition(layer, x, allowed):
    """The output and the weights in float64 NumPy, one query at a time."""
    w = {"/".join(w.path.split("/")[-2:]): wide(w) for w in layer.weights}
    heads = {
        name: np.einsum("btd,dhk->bhtk", x.astype("float64"), w[f"{name}/kernel"])
        + w[f"{name}/bias"][:, None]
        for role in ("query", "key", "value")
        for name in (role, f"global_{role}")
    }
    output, weights = np.zeros((B, T, D)), np.zeros((B, H, T, T))
    near = np.abs(np.subtract.outer(np.arange(T), np.arange(T))) <= 1
    near |= np.arange(T) < NUM_GLOBAL
    near[:NUM_GLOBAL] = True
    for b, h, i in np.ndindex(B, H, T):
        of = "global_" if i < NUM_GLOBAL else ""
        group = h // (H // G)
        scores = heads[f"{of}key"][b, group] @ heads[f"{of}query"][b, h, i] / np.sqrt(K)
        p = np.exp(scores) * (near & allowed[b])[i]
        weights[b, h, i] = p / max(p.sum(), 1e-300)
        value = heads[f"{of}value"][b, group]
        output[b, i] += weights[b, h, i] @ value @ w["attention_output/kernel"][h]
    has_keys = weights.any(axis=(1, 3))[..., None]
    return (output + w["attention_output/bias"]) * has_keys, weights


@pytest.mark.parametrize("masked", [False, True])
def test_it_is_the_equation(masked):
    found = layer()
    kept = KEPT if masked else np.ones_like(KEPT)
    masks = {"query_mask": KEPT, "value_mask": KEPT} if masked else {}
    given = found(X, return_attention_scores=True, **masks)
    expected = definition(found, X, kept[:, None] & kept[..., None])
    for ours, theirs in zip(given, expected, strict=True):
        close(wide(ours), theirs)


@pytest.mark.parametrize("length", [0, 1, NUM_GLOBAL, NUM_GLOBAL + 1])
def test_few_tokens(length):
    found = layer()
    x = np.pad(X[:, :length], ((0, 0), (0, T - length), (0, 0)))
    real = np.broadcast_to(np.arange(T) < length, (B, T))
    expected = definition(found, x, real[:, None] & real[..., None])[0][:, :length]
    close(wide(found(X[:, :length])), expected)


def test_long_sequences_need_no_scores_of_all_pairs():
    """The tiles of windows and global tokens give what all scores do."""
    found = made(ka.LongformerAttention(2, 4, 16, num_global=3), (1, 512, D))
    x = random(1, 512, D)
    expected, _ = found(x, return_attention_scores=True)
    with strategies.using(few=0):
        close(wide(found(x)), wide(expected))


def test_heads_can_be_pruned_and_split_over_devices():
    x = keras.Input((None, D))
    model = keras.Model(x, ka.LongformerAttention(H, K, 1, num_key_value_heads=G, name="layer")(x))
    pruned = inspection.prune_heads(model, {"layer": [0, 3]})
    close(wide(pruned(X)), wide(inspection.ablate_heads(model, {"layer": [0, 3]})(X)))
    mesh = keras.distribution.DeviceMesh((1, 1), ["batch", "model"], ["cpu:0"])
    layouts = distribution.layout_map(mesh, model)
    split = [name for name in layouts if layouts[name].axes[1:2] == ("model",)]
    assert len([name for name in split if name.endswith("/kernel")]) == 6
