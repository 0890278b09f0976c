"""What is raised by positions, embeddings of positions, grids and patches."""

import numpy as np

import keras_attention as ka
from keras_attention import positions
from tests.errors.calls import B, D, S, T, X, attend, ints, true, zeros

CELLS, PIXELS = zeros(B, 4, D), zeros(B, 4, 4, D)
DISENTANGLED = positions.Disentangled(8, 6)
RELATIVE_BIAS, SEGMENTS = positions.RelativeBias(8), positions.TransformerXL()


def over(position, x=X, num_heads=2, key_dim=4, **given):
    """A call of self-attention with a position."""
    return ka.SelfAttention(num_heads, key_dim, position=position)(x, **given)


def shared(position, sizes, x=X):
    """Layers of several sizes which share a position."""
    for num_heads, key_dim in sizes:
        over(position, x, num_heads, key_dim)


ROWS = {
    "positions='index'": lambda: over(None, positions="index"),
    "takes no integers": lambda: ka.AttentionPooling()(X, positions=np.arange(T)),
    "positions='places'": lambda: ka.Retention(2, 4)(X, positions="places"),
    "pass positions='tokens'": lambda: ka.SinCosPositionEmbedding()(X, segment_ids=ints(B, T)),
    # Sharing
    "GridRelativeBias .*num_heads=2.*num_heads=3": lambda: shared(
        positions.GridRelativeBias((2, 2)), [(2, 4), (3, 4)], CELLS
    ),
    "MixedRotary .*heads=3": lambda: shared(positions.MixedRotary((2, 2)), [(2, 4), (3, 4)], CELLS),
    "RelativeBias .*num_heads=2.*num_heads=3": lambda: shared(RELATIVE_BIAS, [(2, 4), (3, 4)]),
    "TransformerXL .*num_heads=2.*num_heads=3": lambda: shared(SEGMENTS, [(2, 4), (3, 4)]),
    "TransformerXL .*key_dim=4.*key_dim=6": lambda: shared(SEGMENTS, [(2, 4), (2, 6)]),
    "features=4.*features=6": lambda: [over(DISENTANGLED, zeros(B, T, size)) for size in (4, 6)],
    # Positions
    "multiple of 4.*Received: 6": lambda: over(positions.AxialRotary((2, 2)), CELLS, key_dim=6),
    "`scaling` of AxialRotary .*'dynamic'": lambda: positions.AxialRotary(
        (2, 2), scaling="dynamic", original_max_length=4
    ),
    "`factor` requires `scaling`.*factor=2.0": lambda: positions.Rotary(factor=2.0),
    "`factor` .*factor=0.5": lambda: positions.Rotary(
        scaling="yarn", factor=0.5, original_max_length=4
    ),
    r"numbers below 2.*axes=\[0, 2\]": lambda: positions.AxialRotary((2, 2), axes=[0, 2]),
    "`axes` must be 2 numbers.*Received: 3": lambda: over(
        positions.AxialRotary((2, 2), axes=[0, 1, 1]), CELLS
    ),
    "`terms` .*terms='c2p'": lambda: positions.Disentangled(terms="c2p"),
    "with `own_projections` .*key_dim=None": lambda: ka.Attention(
        position=positions.Disentangled(8, 6, own_projections=True)
    )(X),
    "above 2.*beta_fast=1": lambda: positions.Rotary(beta_fast=1, beta_slow=2),
    "original_max_length=None": lambda: positions.Rotary(scaling="yarn", factor=2.0),
    "Rotary rotates .*Received: 3": lambda: positions.Rotary(dim=3),
    "Rotary rotates .*Received: 5": lambda: over("rotary", key_dim=5),
    "dim=6, features=4": lambda: over(positions.Rotary(dim=6)),
    "Rotary rotates .*query=4, key=6": lambda: positions.Rotary().encode(
        zeros(B, T, 1, 4), zeros(B, S, 1, 6), None, None
    ),
    "num_buckets=9": lambda: positions.RelativeBias(9),
    "num_buckets=6": lambda: positions.Disentangled(6),
    "at least 9.*max_distance=8": lambda: positions.RelativeBias(32, 8),
    "at most 1048576.*max_distance=1048577": lambda: positions.RelativeBias(32, 2**20 + 1),
    r"√\(3 K\), .*ScaledDot\(scale=0\.5\)": lambda: ka.SelfAttention(
        2, 4, position=positions.Disentangled(8, 6), score=ka.scores.ScaledDot(0.5)
    ),
    "a call of a function": lambda: attend(
        query=(B, T, 2, D), key=(B, T, 2, D), value=(B, T, 2, D), position=DISENTANGLED
    ),
    "within 2 positions.*within 3 pos": lambda: over(positions.XPos(0.05)),
    "query=4, key=2": lambda: ka.Attention(score="general", position="cope")(X, X[..., :2]),
    "`dim` must be even.*dim=5": lambda: positions.TransformerXL(5),
    # Embeddings
    r"`x` .*x\.shape=\(2, 4\)": lambda: ka.SinCosPositionEmbedding()(zeros(B, D)),
    r"dim=6, x\.shape=\(2, 3, 4\)": lambda: ka.LearnedPositionEmbedding(9, dim=6)(X),
    "max_length=4.* from 2 to 4": lambda: ka.LearnedPositionEmbedding(4)(X, start_index=2),
    "of dtype float32": (TypeError, lambda: ka.SinCosPositionEmbedding()(X, positions=zeros(T))),
    r"start_index\.shape=\(3,\)": lambda: ka.LearnedPositionEmbedding(9)(X, start_index=ints(3)),
    # Grids
    r"`grid` .*grid=None, x\.shape=\(2, 3, 4\)": lambda: ka.SinCosGridEmbedding()(X),
    r"grid=\(4, 4\), prefix=1": lambda: ka.SinCosGridEmbedding((4, 4), prefix=1)(PIXELS),
    r"has 4 positions.*x\.shape=\(2, 3, 4\)": lambda: ka.LearnedGridEmbedding((2, 2))(X),
    "`start_index` and `positions` are": lambda: ka.SinCosGridEmbedding()(PIXELS, positions=[0]),
    r"grid=\(2, 2\), size=\(3,\)": lambda: ka.LearnedGridEmbedding((2, 2), size=(3,)),
    r"a grid of \(4, 4\)": lambda: ka.LearnedGridEmbedding((2, 2), interpolation=None)(PIXELS),
    # Patches
    r"`images` .*images\.shape=\(2, 3, 4\)": lambda: ka.PatchEmbedding(2, D)(X),
    r"images\.shape=\(2, 4, 5, 3\), patch_size=\(2, 2\)": lambda: ka.PatchEmbedding(
        2, D, data_format="channels_last"
    )(zeros(B, 4, 5, 3)),
    r"`images` .*mask\.shape=\(2, 4\)": lambda: ka.PatchEmbedding(2, D)(PIXELS, mask=true(B, 4)),
    r"grid=\(3, 4\), size=2": lambda: ka.PatchMerging((3, 4))(zeros(B, 12, D)),
    r"x\.shape=\(2, 12, 4\), grid=\(2, 4\)": lambda: ka.PatchMerging((2, 4))(zeros(B, 12, D)),
    r"as `x` .*mask\.shape=\(2, 16\)": lambda: ka.PatchMerging()(PIXELS, mask=true(B, 16)),
}
