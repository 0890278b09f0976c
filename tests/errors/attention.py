"""What is raised by the layers of attention, for what they are made with and called with."""

import keras
import numpy as np

import keras_attention as ka
from keras_attention import feature_maps, ops, patterns, positions, scores
from keras_attention.layers.linear_time.state_attention import StateAttention
from keras_attention.layers.low_rank_attention import LowRankAttention
from tests.errors.calls import (
    SHARED,
    SHARED_SCORE,
    B,
    D,
    Misshapen,
    S,
    T,
    X,
    Y,
    decoder,
    heads,
    memory,
    zeros,
)

SHARED_FEATURES = feature_maps.RandomFeatures(16)


def built(layer, x):
    layer.build(x.shape)
    return layer


ROWS = {
    # Pointers
    r"`attention_mask` must be \(T, S\) or \(B, T, S\)\. Received: .*\(2, 1, ": lambda: (
        ka.PointerHead()(X, X, attention_mask=np.ones((B, 1, T, T), "bool"))
    ),
    rf"Lengths of the mask and of `key` must be equal\. Received: mask={T + 1}, key={T}": lambda: (
        ka.PointerHead()(
            keras.Input((T, D)), keras.Input((T, D)), attention_mask=np.ones((T, T + 1), "bool")
        )
    ),
    r"Numbers of steps T must be equal\. Received: .*attention_scores=1": lambda: (
        ka.PointerGenerator(4)(X, zeros(B, T, 4), zeros(B, 1, T), zeros(B, T, dtype="int32"))
    ),
    r"Batch sizes must be equal\. Received: .*source_ids=1": lambda: ka.PointerGenerator(4)(
        X, zeros(B, T, 4), zeros(B, T, T), zeros(1, T, dtype="int32")
    ),
    r"`attention_scores` must be \(B, T, S\) or \(B, H, T, S\). "
    r"Received: attention_scores.sh": lambda: ka.PointerGenerator(4)(
        X, zeros(B, T, 4), zeros(B, T), zeros(B, T, dtype="int32")
    ),
    r"`source_ids` must be integers. Received: dtype": (
        TypeError,
        lambda: ka.PointerGenerator(4)(X, zeros(B, T, 4), zeros(B, T, T), zeros(B, T)),
    ),
    # States
    r"A feature map is a `scores.Score` with.*`features\(size\)`.*"
    r"Received: feature_map=<Addit": lambda: ka.LinearAttention(
        2, 4, feature_map=scores.Additive(3)
    ),
    r"Retention sees all tokens up to each.*Received: return_attention_scores": lambda: (
        ka.Retention(2, 4)(X, return_attention_scores=True)
    ),
    r"A state has sums of tokens.*Received with a cache.*: return_attention_scores": lambda: (
        ka.LinearAttention(2, 4)(
            X, cache=ka.LinearAttention(2, 4).make_cache(B), return_attention_scores=True
        )
    ),
    r"`cache\['state'\]` must be of shape \(2, 2, 4, 4\).*Received: \(2, 2, 4, 5\)": lambda: (
        ka.Retention(2, 4)(X, cache=ka.LinearAttention(2, 4).make_cache(B))
    ),
    r"`cache` must be.*a dict of 'state', 'last' and 'index'\. "
    r"Received: \['index', 'state'\]": lambda: ka.GatedDeltaNet(2, 4, conv_kernel_size=3)(
        X, cache=ka.GatedDeltaNet(2, 4).make_cache(B)
    ),
    r"`conv_kernel_size`, expected an integer of at least 2\. "
    r"Received: conv_kernel_size=1": lambda: ka.GatedDeltaNet(2, 4, conv_kernel_size=1),
    r"Retention has no scores.*Received: position='alibi'": lambda: ka.Retention(
        2, 4, position="alibi"
    ),
    r"A state sums keys that are encoded once.*Received: a layer with position=<?XPos": lambda: (
        ka.Retention(2, 4, position="xpos").make_cache(B)
    ),
    r"`decays` must be 2 numbers in \(0, 1\].*Received: decays=\[0.5\]": lambda: ka.Retention(
        2, 4, decays=[0.5]
    ),
    rf"GatedDeltaNet takes one sequence\. .*value\.shape=\(2, {S}, 4\)": lambda: built(
        ka.GatedDeltaNet(2, 4), X
    )(X, Y),
    r"Features, in layers that share a RandomFeatures,.*of the vectors=4, of a head=8": lambda: [
        ka.LinearAttention(2, size, feature_map=SHARED_FEATURES)(X) for size in (4, 8)
    ],
    r"StateAttention must implement `recurrence`": (TypeError, lambda: StateAttention(2, 4)(X)),
    r"LongformerAttention counts its global tokens from the first position.*"
    r"Received: positions, use_causal_mask": lambda: ka.LongformerAttention(2, 4, 1)(
        X, use_causal_mask=True, positions=np.arange(T)
    ),
    # Few vectors in place of the sequence
    r"LowRankAttention must implement `through_few`": (
        TypeError,
        lambda: LowRankAttention(2, 4)(X),
    ),
    r"LinformerAttention attends to vectors made of all tokens.*"
    r"Received: use_causal_mask": lambda: ka.LinformerAttention(2, 4, T, 2)(
        X, use_causal_mask=True
    ),
    rf"LinformerAttention has columns for max_length={T - 1} keys. Received: {T}": (
        ValueError,
        lambda: ka.LinformerAttention(2, 4, T - 1, 2)(X),
        lambda: ka.LinformerAttention(2, 4, T - 1, 2)(keras.Input((T, D))),
    ),
    rf"With `conv_kernel_size`, lengths.*query.*{T}.*{S}": lambda: ka.NystromAttention(
        2, 4, conv_kernel_size=3
    )(X, Y),
    # Ranges, positions and segments
    r"`position` must be Rotary\(dim=rope_dim\), or have a bias alone.*"
    r"Received: position=Rotary, dim=4, rope_dim=2": lambda: ka.MultiHeadLatentAttention(
        2, 4, 2, 6, position=positions.Rotary(dim=4)
    ),
    r"MultiHeadLatentAttention does not accept `score`\. Received: score='cosine'": (
        TypeError,
        lambda: ka.MultiHeadLatentAttention(2, 4, 2, 6, score="cosine"),
    ),
    r"`value_dim` must be even.*Received: value_dim=5": lambda: ka.DifferentialAttention(2, 4, 5),
    r"Shaw supports only these scores: Dot or ScaledDot\. Received: score=Cosine": lambda: (
        ka.Attention(2, 4, score="cosine", position=positions.Shaw(2))
    ),
    r"Layers sharing a Shaw need equal sizes\. It was built for value_dim=4\. "
    r"Received: value_dim=3": lambda: [ka.SelfAttention(2, k, position=SHARED)(X) for k in (4, 3)],
    r"`positions` must be a pair, for query and key, when the two are not one sequence": lambda: (
        ka.Attention()(X, Y, positions=np.arange(T))
    ),
    r"`segment_ids` must number both queries and keys\. Received: segment_ids=\(None, ": lambda: (
        ka.Attention()(X, Y, segment_ids=(None, np.ones((B, S), "int32")))
    ),
    r"`positions` must be integers\. Received dtype float": (
        TypeError,
        lambda: ka.SelfAttention(2, 4)(X, positions=np.arange(T) / 2),
    ),
    r"`segment_ids` must be \(B, T\) for each sequence\. "
    r"Received shape \(3,\) for `query`": lambda: ka.SelfAttention(2, 4)(
        X, segment_ids=np.arange(T)
    ),
    r"Lengths of `query` and its positions must be equal\. "
    r"Received: query=3, positions=4": lambda: ka.SelfAttention(2, 4)(
        X, positions=np.arange(T + 1)
    ),
    r"Batch sizes of `query` and its segment_ids must be equal\. Received: query=2, "
    r"segment_ids=3": lambda: ka.SelfAttention(2, 4)(X, segment_ids=np.ones((B + 1, T), "int32")),
    r"Batch sizes of the bias and of `query` must be equal\. Received: bias=3, query=1": lambda: (
        ka.SelfAttention(2, 4)(X[:1], attention_bias=zeros(3, T, T))
    ),
    r"`attention_bias` must be \(T, S\), .*Received: attention_bias\.shape=\(3,\)": lambda: (
        ka.SelfAttention(2, 4)(keras.Input((T, D)), attention_bias=zeros(T))
    ),
    r"`bias` must be numbers to add .*Received: dtype bool\. Pass a mask as `mask`\.": (
        TypeError,
        lambda: ops.attend(*heads(), bias=zeros(T, S, dtype="bool")),
    ),
    r"`bias` must be \(T, S\), or have four axes.*`bias\[None\]`.*shape=\(2, 3, 5\)": lambda: (
        ops.attend(*heads(), bias=zeros(2, T, S))
    ),
    r"Batch sizes of `query` and `offset` must be equal\. Received: query=2, offset=3": lambda: (
        ops.attend(*heads(), offset=zeros(3, dtype="int32"))
    ),
    r"`attention_bias` must be numbers to add to the scores\. Received: dtype bool\.": (
        TypeError,
        lambda: ka.SelfAttention(2, 4)(X, attention_bias=zeros(T, T, dtype="bool")),
    ),
    r"`sink` needs normalization='softmax'\. Received: normalization=Sigmoid\(\)": lambda: (
        ops.attend(*heads(), normalization="sigmoid", sink=zeros(2))
    ),
    r"`sink` must be one number for each head of `query`, \(H,\)\. Received: "
    r"sink\.shape=\(3,\)": lambda: ops.attend(*heads(), sink=zeros(3)),
    r"`offset` and `query_positions` both give the positions of queries.*"
    r"Received: offset=2": lambda: ops.attend(*heads(), offset=2, query_positions=np.arange(T)),
    r"anywhere in a row: give each text its own\. Received: segment_ids": lambda: ka.LocalAttention(
        2, "predictive"
    )(X, Y, segment_ids=(zeros(B, T, dtype="int32"), zeros(B, S, dtype="int32"))),
    r"A score must return scores \(B, H, T, S\), here \(2, 4, 3, 5\)\. "
    r"Received: \(2, 3, 5, 4\)": lambda: ops.attend(
        *heads((B, T, 4, D), (B, S, 4, D), (B, S, 4, D)), score=Misshapen()
    ),
    r"`cell` must be a cell for `keras\.layers\.RNN`, such as `keras\.layers\.GRUCell": (
        TypeError,
        lambda: ka.AttentionCell(keras.layers.GRU(4), "dot"),
    ),
    r"RelativePositionAttention does not accept `position`\. Received: position='alibi'": (
        TypeError,
        lambda: ka.RelativePositionAttention(2, 4, 3, position="alibi"),
    ),
    r"`pattern` must be .*\(of type type\)\. Pass an instance, Causal\(…\)": (
        TypeError,
        lambda: ka.Attention(pattern=patterns.Causal),
    ),
    r"Layers sharing a General need equal sizes.*\(\(1, 4\), \(1, 4\)\)\. "
    r"Received: \(\(2, 4\), \(2, 4\)\)": lambda: [
        ka.Attention(h, 4, score=SHARED_SCORE)(X) for h in (1, 2)
    ],
    r"`segment_ids` needs inputs \(batch, positions, features\).*query\.shape=\(2, 3, "
    r"3, 4\)": lambda: ka.MultiHeadAttention(2, 4)(
        zeros(B, T, T, D), segment_ids=np.ones((B, T * T), "int32")
    ),
    r"`x` must be \(batch, positions, features\).*Received: x\.shape=\(None, 3, None\)": lambda: (
        ka.ClassToken()(keras.Input((T, None)))
    ),
    # Attention
    r"Without `key_dim` there are no projections.* pass .* `key_dim`\. "
    r"Received: num_heads=2, value_dim=None, "
    r"use_bias=False": lambda: ka.Attention(num_heads=2),
    r"`score` must be a string, an instance of Score.* Received: None": (
        TypeError,
        lambda: ka.Attention(score=None),
    ),
    r"`normalization` must be a string, an instance of Normalization.* Received: None": (
        TypeError,
        lambda: ka.TransformerBlock(8, 2, normalization=None),
    ),
    r"`query` must have 3 axes, \(batch, positions, features\)\. Received: "
    r"query\.shape=\(2, 4\)": lambda: ka.Attention()(zeros(B, D), Y),
    r"`attention_mask` must be \(T, S\).*Received: attention_mask\.shape=\(5,\)": lambda: (
        ka.Attention()(X, Y, attention_mask=zeros(S, dtype="bool"))
    ),
    r"either as one list or as three arguments\. Received: a list, and `value` or `key`": lambda: (
        ka.Attention()([X, Y], Y)
    ),
    r"must be \[query, value\] or \[query, value, key\]\. Received a list of length 1": lambda: (
        ka.Attention()([X])
    ),
    r"SelfAttention takes one sequence\. Received: query\.shape=\(2, 3, 4\), "
    r"value\.shape=\(2, 5, 4\)": lambda: ka.SelfAttention()(X, Y),
    # MultiHeadAttention
    r"`flash_attention` must be None, True or False\. Received: flash_attention='yes'": (
        TypeError,
        lambda: ka.MultiHeadAttention(2, 4, flash_attention="yes"),
    ),
    r"`query` and `value` must have the same number of axes, at least 3.*"
    r"query\.shape=\(2, 3, 2, 4\), value\.shape=\(2, 5, 4\)": lambda: ka.MultiHeadAttention(2, 4)(
        zeros(B, T, 2, D), Y
    ),
    r"Invalid `output_shape`: expected an integer of at least 1, or a tuple or list of them\. "
    r"Received: output_shape=\(2, 3\.0\)": lambda: ka.MultiHeadAttention(
        2, 4, output_shape=(2, 3.0)
    ),
    r"`attention_axes` must lie between the batch axis and the features of inputs with 3 axes"
    r".*Received: attention_axes=\(2,\)": lambda: ka.MultiHeadAttention(2, 4, attention_axes=2)(
        X, Y
    ),
    r"`attention_axes` must name an axis of inputs with 4 axes only once\. "
    r"Received: attention_axes=\(1, -3\)": lambda: ka.MultiHeadAttention(
        2, 4, attention_axes=(1, -3)
    )(zeros(B, T, 5, D)),
    r"Batch sizes of `query` and its mask must be equal\. "
    r"Received: query=2, query_mask=3": lambda: ka.MultiHeadAttention(2, 4, attention_axes=2)(
        zeros(B, T, 5, D), query_mask=zeros(3, T, 5, dtype="bool")
    ),
    r"`attention_mask` must broadcast to \(2, 3, 2, 5, 5\), with the axes that are attended "
    r"over\. Received: attention_mask\.shape=\(5, 6\)": lambda: ka.MultiHeadAttention(
        2, 4, attention_axes=2
    )(zeros(B, T, 5, D), attention_mask=zeros(5, 6, dtype="bool")),
    r"`attention_mask` must have 4 to 6 axes, the last 4 being positions of query and key\. "
    r"Received: attention_mask\.shape=\(3, 5\)": lambda: ka.MultiHeadAttention(
        2, 4, kernel_initializer="zeros"
    )(zeros(B, T, 2, D), zeros(B, S, 2, D), attention_mask=zeros(T, S, dtype="bool")),
    # TransformerBlock and AttentionPooling
    r"with features that `num_heads` divides unless `key_dim` is given\. "
    r"Received: x\.shape=\(2, 3, 4\), num_heads=3": lambda: ka.TransformerBlock(8, 3)(X),
    r"only if, it was made with cross_attention=True\. "
    r"Received: cross_attention=False, and a `context`": lambda: ka.TransformerBlock(8, 2)(X, Y),
    r"Received: cross_attention=True, and no `context`": lambda: ka.TransformerBlock(
        8, 2, cross_attention=True
    )(X),
    r"A `context_mask` needs the `context` that it masks\.": lambda: ka.TransformerBlock(8, 2)(
        X, context_mask=np.ones((B, S), bool)
    ),
    r"`norm` must be one of \('layer', 'rms'\), or a Keras layer\. "
    r"Received: norm='batch'": lambda: ka.TransformerBlock(8, 2, norm="batch"),
    r"The block has no weights yet, so that `context` cannot be what its": lambda: (
        ka.TransformerBlock(8, 2, cross_attention=True)(X, memory())
    ),
    r"from `cache_context` contains its mask: omit `context_mask`": lambda: decoder()(
        X, decoder().cache_context(Y), context_mask=np.ones((B, S), bool)
    ),
    r"or what `cache_context` gave\. Received a dict of \['index', 'key', 'value'\]": lambda: (
        decoder()(X, decoder().make_cache(B, S))
    ),
    r"what `make_cache` or a call gave\. "
    r"Received what `cache_context` gave, which is passed": lambda: decoder()(
        X, Y, cache=decoder().cache_context(Y)
    ),
    r"has no weights yet: call it once.*before `cache_context`": lambda: ka.TransformerBlock(
        8, 2, cross_attention=True
    ).cache_context(Y),
    r"not causal cannot have a cache.*Received: causal=False, pattern=None": lambda: decoder(
        causal=False
    ).make_cache(B, T),
}
