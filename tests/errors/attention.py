"""What is raised by the layers of attention, for what they are made with and called with."""

import keras
import numpy as np

import keras_attention as ka
from keras_attention import feature_maps, ops, patterns, positions, scores
from keras_attention.layers.low_rank_attention import LowRankAttention
from keras_attention.layers.state_attention import StateAttention
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


# A call, the type of its exception, and a pattern in the message: what was expected and what came.
ROWS = {
    # Pointers
    "a mask of heads of a pointer": (
        lambda: ka.PointerHead()(X, X, attention_mask=np.ones((B, 1, T, T), "bool")),
        ValueError,
        r"`attention_mask` must be \(T, S\) or \(B, T, S\)\. Received: .*\(2, 1, ",
    ),
    "a mask of other pairs of symbols": (
        lambda: ka.PointerHead()(
            keras.Input((T, D)), keras.Input((T, D)), attention_mask=np.ones((T, T + 1), "bool")
        ),
        ValueError,
        rf"Lengths of the mask and of `key` must be equal\. Received: mask={T + 1}, key={T}",
    ),
    "weights of another number of steps than the logits": (
        lambda: ka.PointerGenerator(4)(
            X, zeros(B, T, 4), zeros(B, 1, T), zeros(B, T, dtype="int32")
        ),
        ValueError,
        r"Numbers of steps T must be equal\. Received: .*attention_scores=1",
    ),
    "a source of another batch": (
        lambda: ka.PointerGenerator(4)(
            X, zeros(B, T, 4), zeros(B, T, T), zeros(1, T, dtype="int32")
        ),
        ValueError,
        r"Batch sizes must be equal\. Received: .*source_ids=1",
    ),
    "weights to copy by, of two axes": (
        lambda: ka.PointerGenerator(4)(X, zeros(B, T, 4), zeros(B, T), zeros(B, T, dtype="int32")),
        ValueError,
        r"`attention_scores` must be \(B, T, S\) or \(B, H, T, S\). Received: attention_scores.sh",
    ),
    "a source of numbers that are no integers": (
        lambda: ka.PointerGenerator(4)(X, zeros(B, T, 4), zeros(B, T, T), zeros(B, T)),
        TypeError,
        r"`source_ids` must be integers. Received: dtype",
    ),
    # States
    "a feature map that compares": (
        lambda: ka.LinearAttention(2, 4, feature_map=scores.Additive(3)),
        ValueError,
        r"A feature map is a `scores.Score` with.*`features\(size\)`.*Received: feature_map=<Addit",
    ),
    "weights of a state": (
        lambda: ka.Retention(2, 4)(X, return_attention_scores=True),
        ValueError,
        r"Retention sees all tokens up to each.*Received: return_attention_scores",
    ),
    "weights of tokens in a state": (
        lambda: ka.LinearAttention(2, 4)(
            X, cache=ka.LinearAttention(2, 4).make_cache(B), return_attention_scores=True
        ),
        ValueError,
        r"A state has sums of tokens.*Received with a cache.*: return_attention_scores",
    ),
    "a state of another size": (
        lambda: ka.Retention(2, 4)(X, cache=ka.LinearAttention(2, 4).make_cache(B)),
        ValueError,
        r"`cache\['state'\]` must be of shape \(2, 2, 4, 4\).*Received: \(2, 2, 4, 5\)",
    ),
    "a state without the last tokens": (
        lambda: ka.GatedDeltaNet(2, 4, conv_kernel_size=3)(
            X, cache=ka.GatedDeltaNet(2, 4).make_cache(B)
        ),
        ValueError,
        r"`cache` must be.*a dict of 'state', 'last' and 'index'\. Received: \['index', 'state'\]",
    ),
    "the last tokens of another convolution": (
        lambda: ka.GatedDeltaNet(2, 4, conv_kernel_size=3)(
            X, cache=ka.GatedDeltaNet(2, 4, conv_kernel_size=4).make_cache(B)
        ),
        ValueError,
        r"`cache\['last'\]` must be of shape \(2, 2, 24\).*Received: \(2, 3, 24\)",
    ),
    "a convolution of one token": (
        lambda: ka.GatedDeltaNet(2, 4, conv_kernel_size=1),
        ValueError,
        r"`conv_kernel_size`, expected an integer of at least 2\. Received: conv_kernel_size=1",
    ),
    "keys in place of a state": (
        lambda: ka.Retention(2, 4)(X, cache=ka.MultiHeadAttention(2, 4).make_cache(B, T)),
        ValueError,
        r"`cache` must be what `make_cache`.*a dict of 'state' and 'index'.*Received: \['index'",
    ),
    "a position of retention that adds": (
        lambda: ka.Retention(2, 4, position="alibi"),
        ValueError,
        r"Retention has no scores.*Received: position='alibi'",
    ),
    "a state of keys that later tokens change": (
        lambda: ka.Retention(2, 4, position="xpos").make_cache(B),
        ValueError,
        r"A state sums keys that are encoded once.*Received: a layer with position=<?XPos",
    ),
    "decays of other heads": (
        lambda: ka.Retention(2, 4, decays=[0.5]),
        ValueError,
        r"`decays` must be 2 numbers in \(0, 1\].*Received: decays=\[0.5\]",
    ),
    "a second sequence of another length, of a built layer": (
        lambda: built(ka.GatedDeltaNet(2, 4), X)(X, Y),
        ValueError,
        rf"GatedDeltaNet takes one sequence\. .*value\.shape=\(2, {S}, 4\)",
    ),
    "random features of heads of other sizes": (
        lambda: [ka.LinearAttention(2, size, feature_map=SHARED_FEATURES)(X) for size in (4, 8)],
        ValueError,
        r"Features, in layers that share a RandomFeatures,.*of the vectors=4, of a head=8",
    ),
    "a state that nobody defines": (
        lambda: StateAttention(2, 4)(X),
        TypeError,
        r"StateAttention must implement `recurrence`",
    ),
    "an order of global tokens": (
        lambda: ka.LongformerAttention(2, 4, 1)(X, use_causal_mask=True, positions=np.arange(T)),
        ValueError,
        r"LongformerAttention counts its global tokens from the first position.*"
        r"Received: positions, use_causal_mask",
    ),
    # Few vectors in place of the sequence
    "a low rank that nobody defines": (
        lambda: LowRankAttention(2, 4)(X),
        TypeError,
        r"LowRankAttention must implement `through_few`",
    ),
    "an order of projections of all tokens": (
        lambda: ka.LinformerAttention(2, 4, T, 2)(X, use_causal_mask=True),
        ValueError,
        r"LinformerAttention attends to vectors made of all tokens.*Received: use_causal_mask",
    ),
    "more keys than columns of a projection": (
        lambda: ka.LinformerAttention(2, 4, T - 1, 2)(X),
        ValueError,
        rf"LinformerAttention has columns for max_length={T - 1} keys. Received: {T}",
    ),
    "more symbols than columns of a projection": (
        lambda: ka.LinformerAttention(2, 4, T - 1, 2)(keras.Input((T, D))),
        ValueError,
        rf"LinformerAttention has columns for max_length={T - 1} keys. Received: {T}",
    ),
    "a convolution of other keys": (
        lambda: ka.NystromAttention(2, 4, conv_kernel_size=3)(X, Y),
        ValueError,
        rf"With `conv_kernel_size`, lengths.*query.*{T}.*{S}",
    ),
    "a sharing that there is not": (
        lambda: ka.LinformerAttention(2, 4, T, 2, sharing="layers"),
        ValueError,
        r"`sharing` must be one of \(None, 'heads', 'key_value'\). Received: sharing='layers'",
    ),
    # Ranges, positions and segments
    "a mode of another name": (
        lambda: ka.LocalAttention(2, "local-p"),
        ValueError,
        r"`mode` must be one of \('monotonic', 'predictive'\)\. Received: mode='local-p'",
    ),
    "a window of nothing": (
        lambda: ka.LocalAttention(0),
        ValueError,
        r"argument `window`, expected an integer of at least 1\. Received: window=0",
    ),
    "a position of other features than latent attention rotates": (
        lambda: ka.MultiHeadLatentAttention(2, 4, 2, 6, position=positions.Rotary(dim=4)),
        ValueError,
        r"`position` must be Rotary\(dim=rope_dim\), or have a bias alone.*"
        r"Received: position=Rotary, dim=4, rope_dim=2",
    ),
    "a score of latent attention": (
        lambda: ka.MultiHeadLatentAttention(2, 4, 2, 6, score="cosine"),
        TypeError,
        r"MultiHeadLatentAttention does not accept `score`\. Received: score='cosine'",
    ),
    "halves of a value of odd size": (
        lambda: ka.DifferentialAttention(2, 4, 5),
        ValueError,
        r"`value_dim` must be even.*Received: value_dim=5",
    ),
    "a mask of both attentions of each head": (
        lambda: ka.DifferentialAttention(2, 4)(X, attention_mask=np.ones((B, 4, T, T), bool)),
        ValueError,
        r"Numbers of heads of the mask and of `query` must be equal\. Received: mask=4, query=2",
    ),
    "positions that do not go with the score": (
        lambda: ka.Attention(2, 4, score="cosine", position=positions.Shaw(2)),
        ValueError,
        r"Shaw supports only these scores: Dot or ScaledDot\. Received: score=Cosine",
    ),
    "a Shaw shared by layers of other sizes": (
        lambda: [ka.SelfAttention(2, k, position=SHARED)(X) for k in (4, 3)],
        ValueError,
        r"Layers sharing a Shaw need equal sizes\. It was built for value_dim=4\. "
        r"Received: value_dim=3",
    ),
    "one array for two sequences": (
        lambda: ka.Attention()(X, Y, positions=np.arange(T)),
        ValueError,
        r"`positions` must be a pair, for query and key, when the two are not one sequence",
    ),
    "segments of the keys alone": (
        lambda: ka.Attention()(X, Y, segment_ids=(None, np.ones((B, S), "int32"))),
        ValueError,
        r"`segment_ids` must number both queries and keys\. Received: segment_ids=\(None, ",
    ),
    "positions that are floats": (
        lambda: ka.SelfAttention(2, 4)(X, positions=np.arange(T) / 2),
        TypeError,
        r"`positions` must be integers\. Received dtype float",
    ),
    "segments of one row": (
        lambda: ka.SelfAttention(2, 4)(X, segment_ids=np.arange(T)),
        ValueError,
        r"`segment_ids` must be \(B, T\) for each sequence\. Received shape \(3,\) for `query`",
    ),
    "positions of another length": (
        lambda: ka.SelfAttention(2, 4)(X, positions=np.arange(T + 1)),
        ValueError,
        r"Lengths of `query` and its positions must be equal\. Received: query=3, positions=4",
    ),
    "segments of another batch": (
        lambda: ka.SelfAttention(2, 4)(X, segment_ids=np.ones((B + 1, T), "int32")),
        ValueError,
        r"Batch sizes of `query` and its segment_ids must be equal\. Received: query=2, "
        r"segment_ids=3",
    ),
    "a bias of another batch": (
        lambda: ka.SelfAttention(2, 4)(X[:1], attention_bias=zeros(3, T, T)),
        ValueError,
        r"Batch sizes of the bias and of `query` must be equal\. Received: bias=3, query=1",
    ),
    "a bias of too few axes, of a functional model": (
        lambda: ka.SelfAttention(2, 4)(keras.Input((T, D)), attention_bias=zeros(T)),
        ValueError,
        r"`attention_bias` must be \(T, S\), .*Received: attention_bias\.shape=\(3,\)",
    ),
    "a mask as the bias of a function": (
        lambda: ops.attend(*heads(), bias=zeros(T, S, dtype="bool")),
        TypeError,
        r"`bias` must be numbers to add .*Received: dtype bool\. Pass a mask as `mask`\.",
    ),
    "a bias of three axes": (
        lambda: ops.attend(*heads(), bias=zeros(2, T, S)),
        ValueError,
        r"`bias` must be \(T, S\), or have four axes.*`bias\[None\]`.*shape=\(2, 3, 5\)",
    ),
    "a bias of five axes": (
        lambda: ops.attend(*heads(), bias=zeros(1, B, 2, T, S)),
        ValueError,
        r"`bias` must be \(T, S\), or have four axes.*Received: bias\.shape=\(1, 2, 2, 3, 5\)",
    ),
    "offsets of another batch": (
        lambda: ops.attend(*heads(), offset=zeros(3, dtype="int32")),
        ValueError,
        r"Batch sizes of `query` and `offset` must be equal\. Received: query=2, offset=3",
    ),
    "a bias that is a mask": (
        lambda: ka.SelfAttention(2, 4)(X, attention_bias=zeros(T, T, dtype="bool")),
        TypeError,
        r"`attention_bias` must be numbers to add to the scores\. Received: dtype bool\.",
    ),
    "a sink of a sigmoid, as a function": (
        lambda: ops.attend(*heads(), normalization="sigmoid", sink=zeros(2)),
        ValueError,
        r"`sink` needs normalization='softmax'\. Received: normalization=Sigmoid\(\)",
    ),
    "sinks of other heads": (
        lambda: ops.attend(*heads(), sink=zeros(3)),
        ValueError,
        r"`sink` must be one number for each head of `query`, \(H,\)\. Received: "
        r"sink\.shape=\(3,\)",
    ),
    "two ways to give the positions of queries": (
        lambda: ops.attend(*heads(), offset=2, query_positions=np.arange(T)),
        ValueError,
        r"`offset` and `query_positions` both give the positions of queries.*Received: offset=2",
    ),
    "segments round a predicted center": (
        lambda: ka.LocalAttention(2, "predictive")(
            X, Y, segment_ids=(zeros(B, T, dtype="int32"), zeros(B, S, dtype="int32"))
        ),
        ValueError,
        r"anywhere in a row: give each text one of its own\. Received: segment_ids",
    ),
    "a score with its axes in another order": (
        lambda: ops.attend(*heads((B, T, 4, D), (B, S, 4, D), (B, S, 4, D)), score=Misshapen()),
        ValueError,
        r"A score must return scores \(B, H, T, S\), here \(2, 4, 3, 5\)\. "
        r"Received: \(2, 3, 5, 4\)",
    ),
    "a recurrent layer for its cell": (
        lambda: ka.AttentionCell(keras.layers.GRU(4), "dot"),
        TypeError,
        r"`cell` must be a cell for `keras\.layers\.RNN`, such as `keras\.layers\.GRUCell",
    ),
    "an argument that a preset fixes": (
        lambda: ka.RelativePositionAttention(2, 4, 3, position="alibi"),
        TypeError,
        r"RelativePositionAttention does not accept `position`\. Received: position='alibi'",
    ),
    "a class for an object": (
        lambda: ka.Attention(pattern=patterns.Causal),
        TypeError,
        r"`pattern` must be .*\(of type type\)\. Pass an instance, Causal\(…\)",
    ),
    "a score shared by layers of other sizes": (
        lambda: [ka.Attention(h, 4, score=SHARED_SCORE)(X) for h in (1, 2)],
        ValueError,
        r"Layers sharing a General need equal sizes.*\(\(1, 4\), \(1, 4\)\)\. "
        r"Received: \(\(2, 4\), \(2, 4\)\)",
    ),
    "segments of an image": (
        lambda: ka.MultiHeadAttention(2, 4)(
            zeros(B, T, T, D), segment_ids=np.ones((B, T * T), "int32")
        ),
        ValueError,
        r"`segment_ids` needs inputs \(batch, positions, features\).*query\.shape=\(2, 3, 3, 4\)",
    ),
    "a class token of unknown features": (
        lambda: ka.ClassToken()(keras.Input((T, None))),
        ValueError,
        r"`x` must be \(batch, positions, features\).*Received: x\.shape=\(None, 3, None\)",
    ),
    "no class token": (
        lambda: ka.ClassToken(num_tokens=0),
        ValueError,
        r"`num_tokens`, expected an integer of at least 1\. Received: num_tokens=0",
    ),
    # Attention
    "heads without projections": (
        lambda: ka.Attention(num_heads=2),
        ValueError,
        r"Without `key_dim` there are no projections.* pass .* `key_dim`\. "
        r"Received: num_heads=2, value_dim=None, "
        r"use_bias=False",
    ),
    "no score": (
        lambda: ka.Attention(score=None),
        TypeError,
        r"`score` must be a string, an instance of Score.* Received: None",
    ),
    "no normalization": (
        lambda: ka.TransformerBlock(8, 2, normalization=None),
        TypeError,
        r"`normalization` must be a string, an instance of Normalization.* Received: None",
    ),
    "rank of a layer's query": (
        lambda: ka.Attention()(zeros(B, D), Y),
        ValueError,
        r"`query` must have 3 axes, \(batch, positions, features\)\. Received: "
        r"query\.shape=\(2, 4\)",
    ),
    "rank of a layer's mask": (
        lambda: ka.Attention()(X, Y, attention_mask=zeros(S, dtype="bool")),
        ValueError,
        r"`attention_mask` must be \(T, S\).*Received: attention_mask\.shape=\(5,\)",
    ),
    "a list and a tensor": (
        lambda: ka.Attention()([X, Y], Y),
        ValueError,
        r"either as one list or as three arguments\. Received: a list, and `value` or `key`",
    ),
    "a list of one": (
        lambda: ka.Attention()([X]),
        ValueError,
        r"must be \[query, value\] or \[query, value, key\]\. Received a list of length 1",
    ),
    "a list of four": (
        lambda: ka.Attention()([X, Y, Y, Y]),
        ValueError,
        r"must be \[query, value\] or \[query, value, key\]\. Received a list of length 4",
    ),
    "two sequences for one": (
        lambda: ka.SelfAttention()(X, Y),
        ValueError,
        r"SelfAttention takes one sequence\. Received: query\.shape=\(2, 3, 4\), "
        r"value\.shape=\(2, 5, 4\)",
    ),
    # MultiHeadAttention
    "flash_attention of another type": (
        lambda: ka.MultiHeadAttention(2, 4, flash_attention="yes"),
        TypeError,
        r"`flash_attention` must be None, True or False\. Received: flash_attention='yes'",
    ),
    "ranks of query and value": (
        lambda: ka.MultiHeadAttention(2, 4)(zeros(B, T, 2, D), Y),
        ValueError,
        r"`query` and `value` must have the same number of axes, at least 3.*"
        r"query\.shape=\(2, 3, 2, 4\), value\.shape=\(2, 5, 4\)",
    ),
    "an output shape of floats": (
        lambda: ka.MultiHeadAttention(2, 4, output_shape=(2, 3.0)),
        ValueError,
        r"Invalid `output_shape`: expected an integer of at least 1, or a tuple or list of them\. "
        r"Received: output_shape=\(2, 3\.0\)",
    ),
    "an axis that is not there": (
        lambda: ka.MultiHeadAttention(2, 4, attention_axes=2)(X, Y),
        ValueError,
        r"`attention_axes` must lie between the batch axis and the features of inputs with 3 axes"
        r".*Received: attention_axes=\(2,\)",
    ),
    "attention_axes that name an axis twice": (
        lambda: ka.MultiHeadAttention(2, 4, attention_axes=(1, -3))(zeros(B, T, 5, D)),
        ValueError,
        r"`attention_axes` must name an axis of inputs with 4 axes only once\. "
        r"Received: attention_axes=\(1, -3\)",
    ),
    "padding of other rows, along axes": (
        lambda: ka.MultiHeadAttention(2, 4, attention_axes=2)(
            zeros(B, T, 5, D), query_mask=zeros(3, T, 5, dtype="bool")
        ),
        ValueError,
        r"Batch sizes of `query` and its mask must be equal\. Received: query=2, query_mask=3",
    ),
    "attention_mask of another length, along axes": (
        lambda: ka.MultiHeadAttention(2, 4, attention_axes=2)(
            zeros(B, T, 5, D), attention_mask=zeros(5, 6, dtype="bool")
        ),
        ValueError,
        r"`attention_mask` must broadcast to \(2, 3, 2, 5, 5\), with the axes that are attended "
        r"over\. Received: attention_mask\.shape=\(5, 6\)",
    ),
    "rank of a mask over two axes": (
        lambda: ka.MultiHeadAttention(2, 4, kernel_initializer="zeros")(
            zeros(B, T, 2, D), zeros(B, S, 2, D), attention_mask=zeros(T, S, dtype="bool")
        ),
        ValueError,
        r"`attention_mask` must have 4 to 6 axes, the last 4 being positions of query and key\. "
        r"Received: attention_mask\.shape=\(3, 5\)",
    ),
    # TransformerBlock and AttentionPooling
    "heads that do not divide the features": (
        lambda: ka.TransformerBlock(8, 3)(X),
        ValueError,
        r"with features that `num_heads` divides unless `key_dim` is given\. "
        r"Received: x\.shape=\(2, 3, 4\), num_heads=3",
    ),
    "a context without cross-attention": (
        lambda: ka.TransformerBlock(8, 2)(X, Y),
        ValueError,
        r"only if, it was made with cross_attention=True\. "
        r"Received: cross_attention=False, and a `context`",
    ),
    "cross-attention without a context": (
        lambda: ka.TransformerBlock(8, 2, cross_attention=True)(X),
        ValueError,
        r"Received: cross_attention=True, and no `context`",
    ),
    "a mask of no context": (
        lambda: ka.TransformerBlock(8, 2)(X, context_mask=np.ones((B, S), bool)),
        ValueError,
        r"A `context_mask` needs the `context` that it masks\.",
    ),
    "an unknown norm of a block": (
        lambda: ka.TransformerBlock(8, 2, norm="batch"),
        ValueError,
        r"`norm` must be one of \('layer', 'rms'\), or a Keras layer\. Received: norm='batch'",
    ),
    "a context that another block made, for a block without weights": (
        lambda: ka.TransformerBlock(8, 2, cross_attention=True)(X, memory()),
        ValueError,
        r"The block has no weights yet, so that `context` cannot be what its",
    ),
    "a mask beside the memory of a context": (
        lambda: decoder()(X, decoder().cache_context(Y), context_mask=np.ones((B, S), bool)),
        ValueError,
        r"from `cache_context` contains its mask: omit `context_mask`",
    ),
    "the tokens of a cache in place of a context": (
        lambda: decoder()(X, decoder().make_cache(B, S)),
        ValueError,
        r"or what `cache_context` gave\. Received a dict of \['index', 'key', 'value'\]",
    ),
    "the memory of a context in place of a cache": (
        lambda: decoder()(X, Y, cache=decoder().cache_context(Y)),
        ValueError,
        r"what `make_cache` or a call gave\. Received what `cache_context` gave, which is passed",
    ),
    "the memory of a block without weights": (
        lambda: ka.TransformerBlock(8, 2, cross_attention=True).cache_context(Y),
        ValueError,
        r"has no weights yet: call it once.*before `cache_context`",
    ),
    "a cache for a block that is not causal": (
        lambda: decoder(causal=False).make_cache(B, T),
        ValueError,
        r"not causal cannot have a cache.*Received: causal=False, pattern=None",
    ),
}
