"""What is raised by positions and position embeddings."""

import numpy as np

import keras_attention as ka
from keras_attention import positions
from keras_attention.layers.embeddings.grid_embedding import GridEmbedding
from keras_attention.layers.embeddings.position_embedding import PositionEmbedding
from tests.errors.calls import RELATIVE_BIAS, B, D, S, T, X, zeros

SCALED = ka.scores.ScaledDot(0.5)
GRID_BIAS = positions.GridRelativeBias((2, 2))
ka.SelfAttention(2, 4, position=GRID_BIAS).build((B, 4, D))
MIXED = positions.MixedRotary((2, 2))
ka.SelfAttention(2, 4, position=MIXED).build((B, 4, D))
SEGMENTS = positions.TransformerXL()
DISENTANGLED = positions.Disentangled(8, 6)
ka.SelfAttention(2, 4, position=DISENTANGLED).build((B, T, D))

ROWS = {
    r"`positions` must be .*'tokens'.*'places'.*Received: positions='index'": lambda: (
        ka.SelfAttention(2, 4)(X, positions="index")
    ),
    r"`positions` must be one of .*takes no integers\. "
    r"Received: \w*(ndarray|Array|Tensor)": lambda: ka.AttentionPooling()(
        X, positions=np.arange(T)
    ),
    r"Retention can count real tokens alone: it sums .*Received: positions='places'": lambda: (
        ka.Retention(2, 4)(X, positions="places")
    ),
    r"`segment_ids` number texts whose tokens are counted: pass positions='tokens'": lambda: (
        ka.SinCosPositionEmbedding()(X, segment_ids=np.zeros((B, T), int))
    ),
    r"Layers sharing a GridRelativeBias need one number of heads\. It was built for 2\. "
    r"Received: num_heads=3": lambda: ka.SelfAttention(3, 4, position=GRID_BIAS)(zeros(B, 4, D)),
    r"must be a multiple of 4\. Received: 6": lambda: ka.SelfAttention(
        2, 6, position=positions.AxialRotary((2, 2))
    )(zeros(B, 4, D)),
    r"Layers sharing a MixedRotary need one number of heads\. It was built for 2\. "
    r"Received: num_heads=3": lambda: ka.SelfAttention(3, 4, position=MIXED)(zeros(B, 4, D)),
    r"Heads of layers that share a TransformerXL must be equal\. "
    r"Received: built=2, received=3": lambda: [
        ka.SelfAttention(n, 4, position=SEGMENTS)(X) for n in (2, 3)
    ],
    r"Features of layers that share a TransformerXL must be equal\. "
    r"Received: built=4, received=6": lambda: [
        ka.SelfAttention(2, n, position=SEGMENTS)(X) for n in (4, 6)
    ],
    r"`scaling` of AxialRotary must not depend on the length\. "
    r"Received: scaling='dynamic'": lambda: positions.AxialRotary(
        (2, 2), scaling="dynamic", original_max_length=4
    ),
    # Position embeddings
    r"PositionEmbedding must implement `embed\(self, positions, size\)`\.": (
        TypeError,
        lambda: PositionEmbedding()(X),
    ),
    r"`x` must be \(batch, positions, features\) with a known number of features\. "
    r"Received: x\.shape=\(2, 4\)": lambda: ka.SinCosPositionEmbedding()(zeros(B, D)),
    r"With merge_mode='add', `dim` must be None or the number of features of `x`\. "
    r"Received: dim=6, x\.shape=\(2, 3, 4\)": lambda: ka.LearnedPositionEmbedding(9, dim=6)(X),
    r"Positions must lie in \[0, max_length=4\)\. Received positions from 2 to 4": lambda: (
        ka.LearnedPositionEmbedding(4)(X, start_index=2)
    ),
    r"`positions` must be integers, \(positions,\) or \(batch, positions\) of `x`\. "
    r"Received: positions of dtype float32": (
        TypeError,
        lambda: ka.SinCosPositionEmbedding()(X, positions=zeros(T)),
    ),
    r"`start_index` must be an integer, or one for each row of `x`, \(batch,\)\. "
    r"Received: start_index\.shape=\(3,\), x\.shape=\(2, 3, 4\)": lambda: (
        ka.LearnedPositionEmbedding(9)(X, start_index=np.zeros(B + 1, int))
    ),
    # Grids
    r"GridEmbedding must implement `vectors\(self, sizes, size\)`\.": (
        TypeError,
        lambda: GridEmbedding((1, T))(X),
    ),
    r"`grid` must have the sizes of the grid that it is made of\. "
    r"Received: grid=None, x\.shape=\(2, 3, 4\)": lambda: ka.SinCosGridEmbedding()(X),
    r"or a grid of as many axes as `grid` has, .*which has no `prefix`\. "
    r"Received: x\.shape=\(2, 2, 2, 4\), grid=\(2, 2\), prefix=1": lambda: ka.SinCosGridEmbedding(
        (2, 2), prefix=1
    )(zeros(B, 2, 2, D)),
    r"A sequence of the grid \(2, 2\) with 0 positions before it has 4 positions; "
    r"for others give `positions`\. Received: x\.shape=\(2, 3, 4\)": lambda: (
        ka.LearnedGridEmbedding((2, 2))(X)
    ),
    r"`start_index` and `positions` are of a sequence, .*"
    r"Received: x\.shape=\(2, 2, 2, 4\)": lambda: ka.SinCosGridEmbedding()(
        zeros(B, 2, 2, D), positions=np.arange(4)
    ),
    r"Positions must lie in \[0, prefix \+ cells of the grid=2\)\. "
    r"Received positions from 0 to 2": lambda: ka.LearnedGridEmbedding((1, 2))(
        X, positions=np.arange(T)
    ),
    r"`size` be None or as many\. Received: grid=\(2, 2\), size=\(3,\)": lambda: (
        ka.LearnedGridEmbedding((2, 2), size=(3,))
    ),
    r"Without an `interpolation`, .* Received: grid=\(2, 2\), and a grid of \(2, 3\)": lambda: (
        ka.LearnedGridEmbedding((2, 2), interpolation=None)(zeros(B, 2, 3, D))
    ),
    # Patches
    r"`images` must have the axes \(batch, size, size\) and a known number of channels, in the "
    r"format '.*', for patch_size=\(2, 2\)\. Received: images\.shape=\(2, 3, 4\)": lambda: (
        ka.PatchEmbedding(2, D)(X)
    ),
    r"Sizes of `images` must be multiples of those of `patch_size`.*"
    r"Received: images\.shape=\(2, 4, 5, 3\), patch_size=\(2, 2\)": lambda: ka.PatchEmbedding(
        2, D, data_format="channels_last"
    )(zeros(B, 4, 5, 3)),
    r"`mask` must have 3 axes, as `images` without its channels\. "
    r"Received: mask\.shape=\(2, 4\)": lambda: ka.PatchEmbedding(2, D)(
        zeros(B, 4, 4, 4), mask=np.ones((B, 4), bool)
    ),
    r"must be multiples of `size`: pad or crop it\. "
    r"Received: x\.shape=\(2, 12, 4\), grid=\(3, 4\), size=2": lambda: ka.PatchMerging((3, 4))(
        zeros(B, 12, D)
    ),
    r"`x` must be the sequence of a `grid`, .*"
    r"Received: x\.shape=\(2, 12, 4\), grid=\(2, 4\)": lambda: ka.PatchMerging((2, 4))(
        zeros(B, 12, D)
    ),
    r"with as many axes as `size` has\. "
    r"Received: x\.shape=\(2, 2, 4, 4, 4\), grid=None, size=": lambda: ka.PatchMerging(size=(2, 2))(
        zeros(B, 2, 4, 4, D)
    ),
    r"`mask` must have 3 axes, as `x` without its channels\. "
    r"Received: mask\.shape=\(2, 16\)": lambda: ka.PatchMerging()(
        zeros(B, 4, 4, D), mask=np.ones((B, 16), bool)
    ),
    # Positions
    r"`max_wavelength` must be a finite number above 1\. Received: max_wavelength='a'": lambda: (
        positions.Rotary("a")
    ),
    r"`factor` must be a finite number of at least 1\. Received: factor=0\.5": lambda: (
        positions.Rotary(scaling="linear", factor=0.5)
    ),
    r"`beta_fast` must be a finite number above 2\. Received: beta_fast=1": lambda: (
        positions.Rotary(beta_fast=1, beta_slow=2)
    ),
    r"`factor` requires `scaling`, which must be one of \('linear', 'dynamic', 'yarn', "
    r"'llama3', 'longrope'\)\. "
    r"Received: scaling=None, factor=2\.0": lambda: positions.Rotary(factor=2.0),
    r"argument `original_max_length`, expected an integer of at least 1\. "
    r"Received: original_max_length=None": lambda: positions.Rotary(scaling="yarn", factor=2.0),
    r"Rotary rotates features in pairs, so their number must be even\. Received: 3": lambda: (
        positions.Rotary(dim=3)
    ),
    r"Rotary rotates features in pairs, so their number must be even\. Received: 5": lambda: (
        ka.SelfAttention(2, 5, position="rotary")(X)
    ),
    r"`dim` must be at most the number of features of a head\. "
    r"Received: dim=6, features=4": lambda: ka.SelfAttention(
        2, 4, position=positions.Rotary(dim=6)
    )(X),
    r"Numbers of features that Rotary rotates must be equal\. Received: query=4, key=6": lambda: (
        positions.Rotary().encode(zeros(B, T, 1, 4), zeros(B, S, 1, 6), None, None)
    ),
    r"With two directions, `num_buckets` must be even\. Received: num_buckets=9": lambda: (
        positions.RelativeBias(9)
    ),
    r"argument `max_distance`, expected an integer of at least 9\. "
    r"Received: max_distance=8": lambda: positions.RelativeBias(32, 8),
    r"`num_buckets` must be a multiple of 4\. Received: num_buckets=6": lambda: (
        positions.Disentangled(6)
    ),
    r"Layers sharing a Disentangled need inputs of one number of features\. It was built for "
    r"4\. Received: 6": lambda: [
        ka.SelfAttention(2, 4, position=DISENTANGLED)(x) for x in (X, zeros(B, T, D + 2))
    ],
    r"Disentangled divides all three terms by √\(3 K\), .*"
    r"Received: score=ScaledDot\(scale=0\.5\)": lambda: ka.SelfAttention(
        2, 4, position=positions.Disentangled(8, 6), score=SCALED
    ),
    r"Disentangled has a table that a layer projects by its own weights: use an attention "
    r"layer\. Received: a call of a function": lambda: ka.ops.attend(
        *[zeros(B, T, 2, 4)] * 3, position=DISENTANGLED
    ),
    r"Layers sharing a RelativeBias need one number of heads\. It was built for 2\. "
    r"Received: num_heads=3": lambda: [
        ka.SelfAttention(heads, 4, position=RELATIVE_BIAS)(X) for heads in (2, 3)
    ],
    r"XPos\(scale_base=0\.05, gamma=0\.4\) takes queries within 2 positions in one call.* a larger "
    r"`scale_base`, or a cache and several calls\. Received: queries within 3 pos": lambda: (
        ka.SelfAttention(2, 4, position=positions.XPos(0.05))(X)
    ),
    rf"Features of query and key.* must be equal\. Received: query={X.shape[-1]}, key=2": lambda: (
        ka.Attention(score="general", position="cope")(X, X[..., :2])
    ),
    r"a sine and a cosine of each wavelength, so that `dim` must be even\. "
    r"Received: dim=5": lambda: positions.TransformerXL(5),
}
