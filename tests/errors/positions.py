"""What is raised by positions and position embeddings."""

import numpy as np

import keras_attention as ka
from keras_attention import positions
from keras_attention.layers.grid_embedding import GridEmbedding
from keras_attention.layers.position_embedding import PositionEmbedding
from tests.errors.calls import RELATIVE_BIAS, B, D, S, T, X, zeros

SCALED = ka.scores.ScaledDot(0.5)
GRID_BIAS = positions.GridRelativeBias((2, 2))
ka.SelfAttention(2, 4, position=GRID_BIAS).build((B, 4, D))
MIXED = positions.MixedRotary((2, 2))
ka.SelfAttention(2, 4, position=MIXED).build((B, 4, D))
SEGMENTS = positions.TransformerXL()
DISENTANGLED = positions.Disentangled(8, 6)
ka.SelfAttention(2, 4, position=DISENTANGLED).build((B, T, D))

# A call, the type of its exception, and a pattern in the message: what was expected and what came.
ROWS = {
    "positions of another word": (
        lambda: ka.SelfAttention(2, 4)(X, positions="index"),
        ValueError,
        r"`positions` must be .*'tokens'.*'places'.*Received: positions='index'",
    ),
    "integers where a score counts": (
        lambda: ka.AttentionPooling()(X, positions=np.arange(T)),
        ValueError,
        r"`positions` must be one of .*takes no integers\. Received: (ndarray|ArrayImpl|Tensor)",
    ),
    "places of a state": (
        lambda: ka.Retention(2, 4)(X, positions="places"),
        ValueError,
        r"Retention can count real tokens alone: it sums .*Received: positions='places'",
    ),
    "texts that are not counted": (
        lambda: ka.SinCosPositionEmbedding()(X, segment_ids=np.zeros((B, T), int)),
        ValueError,
        r"`segment_ids` number texts whose tokens are counted: pass positions='tokens'",
    ),
    "a bias of a grid in layers of unlike heads": (
        lambda: ka.SelfAttention(3, 4, position=GRID_BIAS)(zeros(B, 4, D)),
        ValueError,
        r"Layers sharing a GridRelativeBias need one number of heads\. It was built for 2\. "
        r"Received: num_heads=3",
    ),
    "too few features for the axes of a grid": (
        lambda: ka.SelfAttention(2, 6, position=positions.AxialRotary((2, 2)))(zeros(B, 4, D)),
        ValueError,
        r"must be a multiple of 4\. Received: 6",
    ),
    "layers that share a mixed rotary": (
        lambda: ka.SelfAttention(3, 4, position=MIXED)(zeros(B, 4, D)),
        ValueError,
        r"Layers sharing a MixedRotary need one number of heads\. It was built for 2\. "
        r"Received: num_heads=3",
    ),
    "layers of other heads that share a TransformerXL": (
        lambda: [ka.SelfAttention(n, 4, position=SEGMENTS)(X) for n in (2, 3)],
        ValueError,
        r"Heads of layers that share a TransformerXL must be equal\. "
        r"Received: built=2, received=3",
    ),
    "layers of other features that share a TransformerXL": (
        lambda: [ka.SelfAttention(2, n, position=SEGMENTS)(X) for n in (4, 6)],
        ValueError,
        r"Features of layers that share a TransformerXL must be equal\. "
        r"Received: built=4, received=6",
    ),
    "a scaling of axial rotary by the length": (
        lambda: positions.AxialRotary((2, 2), scaling="dynamic", original_max_length=4),
        ValueError,
        r"`scaling` of AxialRotary must not depend on the length\. Received: scaling='dynamic'",
    ),
    # Position embeddings
    "an unknown merge mode": (
        lambda: ka.SinCosPositionEmbedding(merge_mode="sum"),
        ValueError,
        r"`merge_mode` must be one of \('add', 'concat', 'none'\)\. Received: merge_mode='sum'",
    ),
    "an unknown layout of sines": (
        lambda: ka.SinCosPositionEmbedding(layout="half"),
        ValueError,
        r"`layout` must be one of \('half_split', 'interleaved'\)\. Received: layout='half'",
    ),
    "a position embedding without a rule": (
        lambda: PositionEmbedding()(X),
        TypeError,
        r"PositionEmbedding must implement `embed\(self, positions, size\)`\.",
    ),
    "rank of what positions are added to": (
        lambda: ka.SinCosPositionEmbedding()(zeros(B, D)),
        ValueError,
        r"`x` must be \(batch, positions, features\) with a known number of features\. "
        r"Received: x\.shape=\(2, 4\)",
    ),
    "features that cannot be added": (
        lambda: ka.LearnedPositionEmbedding(9, dim=6)(X),
        ValueError,
        r"With merge_mode='add', `dim` must be None or the number of features of `x`\. "
        r"Received: dim=6, x\.shape=\(2, 3, 4\)",
    ),
    "a wavelength of zero": (
        lambda: ka.SinCosPositionEmbedding(max_wavelength=0),
        ValueError,
        r"`max_wavelength` must be a finite number above 0\. Received: max_wavelength=0",
    ),
    "positions past the table": (
        lambda: ka.LearnedPositionEmbedding(4)(X, start_index=2),
        ValueError,
        r"Positions must lie in \[0, max_length=4\)\. Received positions from 2 to 4",
    ),
    "positions that are not integers": (
        lambda: ka.SinCosPositionEmbedding()(X, positions=zeros(T)),
        TypeError,
        r"`positions` must be integers, \(positions,\) or \(batch, positions\) of `x`\. "
        r"Received: positions of dtype float32",
    ),
    "starts of another batch": (
        lambda: ka.LearnedPositionEmbedding(9)(X, start_index=np.zeros(B + 1, int)),
        ValueError,
        r"`start_index` must be an integer, or one for each row of `x`, \(batch,\)\. "
        r"Received: start_index\.shape=\(3,\), x\.shape=\(2, 3, 4\)",
    ),
    # Grids
    "a grid embedding without vectors": (
        lambda: GridEmbedding((1, T))(X),
        TypeError,
        r"GridEmbedding must implement `vectors\(self, sizes, size\)`\.",
    ),
    "a sequence of a grid that is not known": (
        lambda: ka.SinCosGridEmbedding()(X),
        ValueError,
        r"`grid` must have the sizes of the grid that it is made of\. "
        r"Received: grid=None, x\.shape=\(2, 3, 4\)",
    ),
    "a grid with a class token": (
        lambda: ka.SinCosGridEmbedding((2, 2), prefix=1)(zeros(B, 2, 2, D)),
        ValueError,
        r"or a grid of as many axes as `grid` has, .*which has no `prefix`\. "
        r"Received: x\.shape=\(2, 2, 2, 4\), grid=\(2, 2\), prefix=1",
    ),
    "a sequence of another grid": (
        lambda: ka.LearnedGridEmbedding((2, 2))(X),
        ValueError,
        r"A sequence of the grid \(2, 2\) with 0 positions before it has 4 positions; "
        r"for others give `positions`\. Received: x\.shape=\(2, 3, 4\)",
    ),
    "positions of a grid that is no sequence": (
        lambda: ka.SinCosGridEmbedding()(zeros(B, 2, 2, D), positions=np.arange(4)),
        ValueError,
        r"`start_index` and `positions` are of a sequence, .*Received: x\.shape=\(2, 2, 2, 4\)",
    ),
    "cells past the grid": (
        lambda: ka.LearnedGridEmbedding((1, 2))(X, positions=np.arange(T)),
        ValueError,
        r"Positions must lie in \[0, prefix \+ cells of the grid=2\)\. "
        r"Received positions from 0 to 2",
    ),
    "a table of other axes than the images": (
        lambda: ka.LearnedGridEmbedding((2, 2), size=(3,)),
        ValueError,
        r"`size` be None or as many\. Received: grid=\(2, 2\), size=\(3,\)",
    ),
    "a larger image without interpolation": (
        lambda: ka.LearnedGridEmbedding((2, 2), interpolation=None)(zeros(B, 2, 3, D)),
        ValueError,
        r"Without an `interpolation`, .* Received: grid=\(2, 2\), and a grid of \(2, 3\)",
    ),
    # Patches
    "a patch of no pixels": (
        lambda: ka.PatchEmbedding((2, 0), D),
        ValueError,
        r"Invalid `patch_size`: expected an integer of at least 1, .*\(2, 0\)",
    ),
    "images without channels": (
        lambda: ka.PatchEmbedding(2, D)(X),
        ValueError,
        r"`images` must have the axes \(batch, size, size\) and a known number of channels, in the "
        r"format '.*', for patch_size=\(2, 2\)\. Received: images\.shape=\(2, 3, 4\)",
    ),
    "images that patches do not fit": (
        lambda: ka.PatchEmbedding(2, D, data_format="channels_last")(zeros(B, 4, 5, 3)),
        ValueError,
        r"Sizes of `images` must be multiples of those of `patch_size`.*"
        r"Received: images\.shape=\(2, 4, 5, 3\), patch_size=\(2, 2\)",
    ),
    "a mask of patches, not of pixels": (
        lambda: ka.PatchEmbedding(2, D)(zeros(B, 4, 4, 4), mask=np.ones((B, 4), bool)),
        ValueError,
        r"`mask` must have 3 axes, as `images` without its channels\. "
        r"Received: mask\.shape=\(2, 4\)",
    ),
    "merging half of two cells": (
        lambda: ka.PatchMerging((3, 4))(zeros(B, 12, D)),
        ValueError,
        r"must be multiples of `size`: pad or crop it\. "
        r"Received: x\.shape=\(2, 12, 4\), grid=\(3, 4\), size=2",
    ),
    "merging a sequence of another grid": (
        lambda: ka.PatchMerging((2, 4))(zeros(B, 12, D)),
        ValueError,
        r"`x` must be the sequence of a `grid`, .*Received: x\.shape=\(2, 12, 4\), grid=\(2, 4\)",
    ),
    "merging along other axes": (
        lambda: ka.PatchMerging(size=(2, 2))(zeros(B, 2, 4, 4, D)),
        ValueError,
        r"with as many axes as `size` has\. Received: x\.shape=\(2, 2, 4, 4, 4\), grid=None, size=",
    ),
    "a mask of a sequence for a grid to merge": (
        lambda: ka.PatchMerging()(zeros(B, 4, 4, D), mask=np.ones((B, 16), bool)),
        ValueError,
        r"`mask` must have 3 axes, as `x` without its channels\. Received: mask\.shape=\(2, 16\)",
    ),
    # Positions
    "a wavelength that is text": (
        lambda: positions.Rotary("a"),
        ValueError,
        r"`max_wavelength` must be a finite number above 1\. Received: max_wavelength='a'",
    ),
    "a factor that shortens": (
        lambda: positions.Rotary(scaling="linear", factor=0.5),
        ValueError,
        r"`factor` must be a finite number of at least 1\. Received: factor=0\.5",
    ),
    "a ramp that ends before it begins": (
        lambda: positions.Rotary(beta_fast=1, beta_slow=2),
        ValueError,
        r"`beta_fast` must be a finite number above 2\. Received: beta_fast=1",
    ),
    "a bias of infinity": (
        lambda: positions.ALiBi(float("inf")),
        ValueError,
        r"`max_bias` must be a finite number above 0\. Received: max_bias=inf",
    ),
    "an unknown layout": (
        lambda: positions.Rotary(layout="halves"),
        ValueError,
        r"`layout` must be one of \('half_split', 'interleaved'\)\. Received: layout='halves'",
    ),
    "an unknown scaling": (
        lambda: positions.Rotary(scaling="ntk"),
        ValueError,
        r"`scaling` must be one of \(None, 'linear', 'dynamic', 'yarn', 'llama3', 'longrope'\)\. "
        r"Received: scaling='ntk'",
    ),
    "a factor without a scaling": (
        lambda: positions.Rotary(factor=2.0),
        ValueError,
        r"`factor` requires `scaling`, which must be one of \('linear', 'dynamic', 'yarn', "
        r"'llama3', 'longrope'\)\. "
        r"Received: scaling=None, factor=2\.0",
    ),
    "a scaling without a length": (
        lambda: positions.Rotary(scaling="yarn", factor=2.0),
        ValueError,
        r"argument `original_max_length`, expected an integer of at least 1\. "
        r"Received: original_max_length=None",
    ),
    "an odd number of features to turn": (
        lambda: positions.Rotary(dim=3),
        ValueError,
        r"Rotary rotates features in pairs, so their number must be even\. Received: 3",
    ),
    "heads of an odd number of features": (
        lambda: ka.SelfAttention(2, 5, position="rotary")(X),
        ValueError,
        r"Rotary rotates features in pairs, so their number must be even\. Received: 5",
    ),
    "more features to turn than there are": (
        lambda: ka.SelfAttention(2, 4, position=positions.Rotary(dim=6))(X),
        ValueError,
        r"`dim` must be at most the number of features of a head\. Received: dim=6, features=4",
    ),
    "heads of unequal features to turn": (
        lambda: positions.Rotary().encode(zeros(B, T, 1, 4), zeros(B, S, 1, 6), None, None),
        ValueError,
        r"Numbers of features that Rotary rotates must be equal\. Received: query=4, key=6",
    ),
    "an odd number of buckets for two directions": (
        lambda: positions.RelativeBias(9),
        ValueError,
        r"With two directions, `num_buckets` must be even\. Received: num_buckets=9",
    ),
    "a distance that leaves no room for logarithms": (
        lambda: positions.RelativeBias(32, 8),
        ValueError,
        r"argument `max_distance`, expected an integer of at least 9\. Received: max_distance=8",
    ),
    "buckets that are not as many in all four parts": (
        lambda: positions.Disentangled(6),
        ValueError,
        r"`num_buckets` must be a multiple of 4\. Received: num_buckets=6",
    ),
    "a table for inputs of other features": (
        lambda: [ka.SelfAttention(2, 4, position=DISENTANGLED)(x) for x in (X, zeros(B, T, D + 2))],
        ValueError,
        r"Layers sharing a Disentangled need inputs of one number of features\. It was built for "
        r"4\. Received: 6",
    ),
    "another scale of terms that share one": (
        lambda: ka.SelfAttention(2, 4, position=positions.Disentangled(8, 6), score=SCALED),
        ValueError,
        r"Disentangled divides all three terms by √\(3 K\), .*"
        r"Received: score=ScaledDot\(scale=0\.5\)",
    ),
    "a table that no layer projects": (
        lambda: ka.ops.attend(*[zeros(B, T, 2, 4)] * 3, position=DISENTANGLED),
        ValueError,
        r"Disentangled has a table that a layer projects by its own weights: use an attention "
        r"layer\. Received: a call of a function",
    ),
    "a bias for another number of heads": (
        lambda: [ka.SelfAttention(heads, 4, position=RELATIVE_BIAS)(X) for heads in (2, 3)],
        ValueError,
        r"Layers sharing a RelativeBias need one number of heads\. It was built for 2\. "
        r"Received: num_heads=3",
    ),
    "a variant of another paper": (
        lambda: positions.Kerple("gaussian"),
        ValueError,
        r"`variant` must be one of \('logarithmic', 'power'\)\. Received: variant='gaussian'",
    ),
    "more queries than scales are finite for": (
        lambda: ka.SelfAttention(2, 4, position=positions.XPos(0.05))(X),
        ValueError,
        r"XPos\(scale_base=0\.05, gamma=0\.4\) takes queries within 2 positions in one call: use a "
        r"larger `scale_base`, or a cache and several calls\. Received: queries within 3 positions",
    ),
    "positions further apart than scales are finite for": (
        lambda: ka.SelfAttention(2, 4, position=positions.XPos(10.0))(X, positions=[0, 1, 900]),
        ValueError,
        r"takes queries within 478 positions in one call.*Received: queries within 901 positions",
    ),
    "a score that undoes the scales of XPos": (
        lambda: ka.SelfAttention(2, 4, position="xpos", score="cosine"),
        ValueError,
        r"XPos.*Dot.*ScaledDot.*Cosine",
    ),
    "gates of products of unequal sizes": (
        lambda: ka.Attention(score="general", position="cope")(X, X[..., :2]),
        ValueError,
        rf"Features of query and key.* must be equal\. Received: query={X.shape[-1]}, key=2",
    ),
    "an odd number of sines and cosines": (
        lambda: positions.TransformerXL(5),
        ValueError,
        r"a sine and a cosine of each wavelength, so that `dim` must be even\. Received: dim=5",
    ),
}
