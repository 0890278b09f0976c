"""Rows of `benchmarks.gpu`: options of today, in bfloat16, against layers of Keras and KerasHub."""

import keras
import numpy as np

import keras_attention
from benchmarks import decoder_block
from benchmarks.attention.backends import compiled
from benchmarks.attention.cases import Case, Contestant, Row
from keras_attention import patterns

ops = keras.ops


def _ours_with(**options):
    def prepare(case):
        layer = keras_attention.MultiHeadAttention(
            case.heads, case.key_dim, dtype=POLICIES[case.dtype], **options
        )
        return _of_layer(layer, case)

    return prepare


def _theirs_with(**options):
    def prepare(case):
        layer = keras.layers.MultiHeadAttention(
            case.heads, case.key_dim, dtype=POLICIES[case.dtype], **options
        )
        return _of_layer(layer, case, is_keras=True)

    return prepare


def _of_layer(layer, case, is_keras=False):
    """A layer on `case.length` tokens, with padding on the left if the case has any."""
    rng = np.random.default_rng(0)
    shape = case.batch, case.length, case.features
    x = ops.convert_to_tensor(rng.standard_normal(shape, dtype="float32"), dtype=case.dtype)
    starts = np.linspace(0, case.length // 4, case.batch).astype(int)
    real = ops.convert_to_tensor(np.arange(case.length) >= starts[:, None])
    masks = {"query_mask": real, "value_mask": real} if case.padding else {}
    if is_keras:
        masks["use_causal_mask"] = case.causal

    def call(x):
        return layer(x, x, **masks)

    layer(x, x)
    return compiled(call, layer, [x], case)


POLICIES = {"bfloat16": "mixed_bfloat16", "float32": "float32"}
# By name: options of our layer and of Keras's, which has no positions, and those of the case.
OPTIONS = {
    "rotary": ({"position": "rotary"}, {}, {}),
    "causal-rotary-grouped": (
        {"position": "rotary", "pattern": "causal", "num_key_value_heads": 2},
        {},
        {"causal": True},
    ),
    "causal-window": (
        {"pattern": patterns.SlidingWindow(127, 0)},
        {"sliding_window": 128},
        {"causal": True},
    ),
    "alibi": ({"position": "alibi", "pattern": "causal"}, {}, {"causal": True}),
    "padded-left": ({"pattern": "causal"}, {}, {"causal": True, "padding": True}),
}


def option_rows(size, lengths):
    """Training steps; `lengths` are those of so many sequences."""
    for length, batch in lengths.items():
        for name, (ours, theirs, given) in OPTIONS.items():
            case = size(Case(batch, length, 512, 8, dtype="bfloat16", xla=True, **given))
            yield Row(
                f"{name}-{length}",
                f"{name}: {case.describe()}",
                (Contestant("keras_attention", _ours_with(**ours)), case),
                (Contestant("keras", _theirs_with(**theirs)), case),
                case.gflop(),
                same=False,
            )


def block_rows(size, lengths):
    """The block of Llama's kind: RMSNorm, rotary positions, 8 heads over 2, SwiGLU, causal."""
    for length, batch in lengths.items():
        case = size(Case(batch, length, 512, 8, dtype="bfloat16", causal=True, xla=True))
        sides = [
            (Contestant(name, _llama_block(make)), case)
            for name, make in (
                ("keras_attention", decoder_block.our_block),
                ("keras_hub", decoder_block.hub_block),
            )
        ]
        gflop = case.gflop(projections=2 + 2 * 2 / 8 + 3 * 1376 / 512)
        work = f"Llama's block, padded on the left: {case.describe()}"
        yield Row(f"block-{length}", work, *sides, gflop, same=False)


def _llama_block(make):
    def prepare(case):
        sizes = {"features": case.features, "heads": case.heads}
        if case.features < 512:
            sizes.update(intermediate=2 * case.features, key_heads=1)
        size = decoder_block.Size(case.length, case.batch, **sizes)
        block = make(size, POLICIES[case.dtype])
        x = decoder_block.states(size, case.dtype, case.length)
        mask = ops.convert_to_tensor(size.real)
        named = "mask" if make is decoder_block.our_block else "decoder_padding_mask"

        def call(x, mask):
            # Of padding, each makes something else.
            return ops.where(mask[..., None], block(x, **{named: mask}), 0)

        call(x, mask)
        return compiled(call, block, [x, mask], case)

    return prepare
