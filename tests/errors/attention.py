"""What is raised by the layers of attention, for what they are made with and called with."""

import numpy as np

import keras_attention as ka
from keras_attention import feature_maps, patterns, positions, scores
from keras_attention.layers import kv_cache
from keras_attention.layers.base import BaseAttention
from keras_attention.layers.blocks.block_sparse_attention import BlockSparseAttention
from keras_attention.layers.linear_time.state_attention import StateAttention
from tests.errors.calls import (
    B,
    D,
    S,
    T,
    X,
    Y,
    block,
    built,
    decoder,
    ints,
    multi_head,
    over,
    symbol,
    true,
    zeros,
)

FEATURES, SHAW, GENERAL = feature_maps.RandomFeatures(16), positions.Shaw(2), scores.General()
FOLDED = zeros(B, T, 5, D)


def pointed(mix=(B, T, 4), weights=(B, T, T), ids=None):
    ids = ints(B, T) if ids is None else ids
    return ka.PointerGenerator(4)(X, zeros(*mix), zeros(*weights), ids)


def cached(cache=None, layer=None, x=X, **given):
    """A call with a cache, by default the layer's own."""
    layer = multi_head() if layer is None else layer
    return layer(x, cache=layer.make_cache(B, T) if cache is None else cache, **given)


def cut(layer, length=0):
    """A cache of three tokens, of which some are taken back."""
    return layer.cut_cache(cached(layer=layer)[1], length)


def cut_shared():
    layer = multi_head()
    one = layer(zeros(1, 65, D), cache=layer.make_cache(1, 65))[1]
    return layer.cut_cache(layer.repeat_cache(one, 2), 3)


def handed(heads=2):
    """What a layer hands on."""
    layer = ka.MultiHeadAttention(2, 4, num_key_value_heads=heads)
    return layer(X, return_key_value=True)[1]


def reusing(key_value, **given):
    return ka.MultiHeadAttention(2, 4, reuse="key_value")(X, key_value=key_value, **given)


def over_columns(**given):
    return ka.MultiHeadAttention(2, 4, attention_axes=2)(FOLDED, **given)


def sparse(**given):
    return ka.NativeSparseAttention(2, 4, stride=2, **given)


ROWS = {
    # Pointers
    r"`attention_mask` .*\(2, 1, ": lambda: ka.PointerHead()(X, X, attention_mask=true(B, 1, T, T)),
    "mask=4, key=3": lambda: ka.PointerHead()(
        symbol(T, D), symbol(T, D), attention_mask=true(T, T + 1)
    ),
    "steps T must be equal.*attention_scores=1": lambda: pointed(weights=(B, 1, T)),
    "Batch sizes must be equal.*source_ids=1": lambda: pointed(ids=ints(1, T)),
    r"`attention_scores` .*attention_scores\.sh": lambda: pointed(weights=(B, T)),
    "`source_ids` must be integers": (TypeError, lambda: pointed(ids=zeros(B, T))),
    # States, and few vectors in place of the sequence
    "feature_map=<Additive": lambda: ka.LinearAttention(2, 4, feature_map=scores.Additive(3)),
    "Retention .*: return_attention": lambda: ka.Retention(2, 4)(X, return_attention_scores=True),
    "with a cache.*: return_attention_scores": lambda: cached(
        layer=ka.LinearAttention(2, 4), return_attention_scores=True
    ),
    "conv_kernel_size=1": lambda: ka.GatedDeltaNet(2, 4, conv_kernel_size=1),
    "num_key_heads=3, num_heads=4": lambda: ka.GatedDeltaNet(4, 4, num_key_heads=3),
    "max_rate=2.5": lambda: ka.GatedDeltaNet(2, 4, max_rate=2.5),
    "Received: position='alibi'": lambda: ka.Retention(2, 4, position="alibi"),
    "a layer with position=<?XPos": lambda: ka.Retention(2, 4, position="xpos").make_cache(B),
    r"`decays` .*decays=\[0\.5\]": lambda: ka.Retention(2, 4, decays=[0.5]),
    "of the vectors=4, of a head=8": lambda: [
        ka.LinearAttention(2, size, feature_map=FEATURES)(X) for size in (4, 8)
    ],
    "BaseAttention must implement `attend`": (TypeError, lambda: BaseAttention(2, 4)(X)),
    "StateAttention must implement `recurrence`": (TypeError, lambda: StateAttention(2, 4)(X)),
    "Received: positions, use_causal_mask": lambda: ka.LongformerAttention(2, 4, 1)(
        X, use_causal_mask=True, positions=np.arange(T)
    ),
    r"Blocks at both ends .*shape=\(None, None, 2, 4\)": (
        lambda: BlockSparseAttention(2, 4, 2, 1).attend(*[symbol(None, 2, 4)] * 3, None)
    ),
    "`global_mask` is of one.*(two sequences|'?<?ALiBi)": (
        lambda: ka.LongformerAttention(2, 4, 1)(X, Y, global_mask=true(B, T)),
        lambda: ka.LongformerAttention(2, 4, 1, position="alibi")(X, global_mask=true(B, T)),
    ),
    "Received: use_causal_mask": lambda: ka.LinformerAttention(2, 4, T, 2)(X, use_causal_mask=True),
    "max_length=2 keys. Received: 3": (
        lambda: ka.LinformerAttention(2, 4, T - 1, 2)(X),
        lambda: ka.LinformerAttention(2, 4, T - 1, 2)(symbol(T, D)),
    ),
    "With `conv_kernel_size`.*3.*5": lambda: ka.NystromAttention(2, 4, conv_kernel_size=3)(X, Y),
    # Arguments of layers
    "position=Rotary, dim=4, rope_dim=2": lambda: ka.MultiHeadLatentAttention(
        2, 4, 2, 6, position=positions.Rotary(dim=4)
    ),
    "does not accept `(score|position)`.*'(cosine|alibi)'": (
        TypeError,
        lambda: ka.MultiHeadLatentAttention(2, 4, 2, 6, score="cosine"),
        lambda: ka.RelativePositionAttention(2, 4, 3, position="alibi"),
    ),
    "stride=2, .*(selected_size=65|position=<?(XPos|AxialRotary))": (
        lambda: sparse(selected_size=65),
        lambda: sparse(position="xpos"),
        lambda: sparse(position=positions.AxialRotary((2, 2))),
    ),
    "`value_dim` must be even.*value_dim=5": lambda: ka.DifferentialAttention(2, 4, 5),
    "score=Cosine": lambda: ka.Attention(2, 4, score="cosine", position=SHAW),
    "value_dim=4.*value_dim=3": lambda: [over(key_dim=k, slots={"position": SHAW}) for k in (4, 3)],
    r"Received: \(\(2, 4\), ": lambda: [ka.Attention(h, 4, score=GENERAL)(X) for h in (1, 2)],
    "num_heads=2, value_dim=None, use_bias=False": lambda: ka.Attention(num_heads=2),
    r"`pattern` .*\(of type type\)": (TypeError, lambda: ka.Attention(pattern=patterns.Causal)),
    r"output_shape=\(2, 3\.0\)": lambda: ka.MultiHeadAttention(2, 4, output_shape=(2, 3.0)),
    "key_value_heads=3, num_heads=4": lambda: ka.MultiHeadAttention(4, 8, num_key_value_heads=3),
    "`use_bias` .*use_bias='no'": (TypeError, lambda: ka.MultiHeadAttention(2, 4, use_bias="no")),
    "`use_sink=True` .*Sigmoid": lambda: ka.Attention(normalization="sigmoid", use_sink=True),
    "`seed` .*seed='a'": (TypeError, lambda: ka.Attention(seed="a")),
    # Calls
    "`positions` must be a pair": lambda: ka.Attention()(X, Y, positions=np.arange(T)),
    r"segment_ids=\(None, ": lambda: ka.Attention()(X, Y, segment_ids=(None, ints(B, S))),
    "`positions` must be integers": (TypeError, lambda: over(positions=np.arange(T) / 2)),
    r"`segment_ids` .*shape \(3,\)": lambda: over(segment_ids=np.arange(T)),
    "query=3, positions=4": lambda: over(positions=np.arange(T + 1)),
    "query=2, segment_ids=3": lambda: over(segment_ids=ints(B + 1, T)),
    "bias=3, query=1": lambda: over(X[:1], attention_bias=zeros(3, T, T)),
    r"attention_bias\.shape=\(3,\)": lambda: over(symbol(T, D), attention_bias=zeros(T)),
    "`attention_bias` .*dtype bool": (TypeError, lambda: over(attention_bias=true(T, T))),
    "Received: segment_ids$": lambda: ka.LocalAttention(2, "predictive")(
        X, Y, segment_ids=(ints(B, T), ints(B, S))
    ),
    "`segment_ids` .*3, 5": lambda: ka.MultiHeadAttention(2, 4)(FOLDED, segment_ids=ints(B, 15)),
    r"`x` .*x\.shape=\(None, 3, None\)": lambda: ka.ClassToken()(symbol(T, None)),
    r"`query` .*query\.shape=\(3, 4\)": lambda: ka.Attention()(X[0], Y),
    "a list, and `value` or `key`": lambda: ka.Attention()([X, Y], Y),
    "a list of length 1": lambda: ka.Attention()([X]),
    r"takes one sequence.*value\.shape=\(2, 5, 4\)": (
        lambda: ka.SelfAttention()(X, Y),
        lambda: built(ka.GatedDeltaNet(2, 4))(X, Y),
    ),
    "the same number of axes": lambda: ka.MultiHeadAttention(2, 4)(FOLDED, Y),
    r"attention_axes=\(2,\)": lambda: ka.MultiHeadAttention(2, 4, attention_axes=2)(X, Y),
    r"_axes=\(1, -3\)": lambda: ka.MultiHeadAttention(2, 4, attention_axes=(1, -3))(FOLDED),
    "query=2, query_mask=3": lambda: over_columns(query_mask=true(3, T, 5)),
    r"attention_mask\.shape=\(5, 6\)": lambda: over_columns(attention_mask=true(5, 6)),
    "4 to 6 axes": lambda: ka.MultiHeadAttention(2, 4)(FOLDED, FOLDED, attention_mask=true(T, 5)),
    r"`reward` .*reward\.shape=\(2, 2\)": lambda: ka.ReinforceLoss()(zeros(B, 2, T), zeros(B, 2)),
    "log_probability=2, reward=3": lambda: ka.ReinforceLoss()(zeros(B, 2, T), zeros(B + 1)),
    # Blocks
    r"x\.shape=\(2, 3, 4\), num_heads=3": lambda: ka.TransformerBlock(8, 3)(X),
    "cross_attention=False, and a `context`": lambda: block()(X, Y),
    "context of type NoneType": lambda: block()(X, context_mask=true(B, S)),
    "context of type dict": lambda: decoder()(
        X, decoder().cache_context(Y), context_mask=true(B, S)
    ),
    "an unbuilt block": (
        lambda: block(cross_attention=True)(X, multi_head().cache_context(Y)),
        lambda: block(cross_attention=True).cache_context(Y),
    ),
    r"Received a dict of \['index', 'key'": lambda: decoder()(X, decoder().make_cache(B, S)),
    "`cache_context` gave, which is": lambda: decoder()(X, Y, cache=decoder().cache_context(Y)),
    "causal=False, pattern=None": lambda: decoder(causal=False).make_cache(B, T),
    # Caches
    r"`cache` must be .*Received: \w*(Tensor|Array)": lambda: cached(X),
    r"`cache\['key'\]` .*\(3, 2, 3, 4\)": lambda: cached(multi_head().make_cache(B + 1, T)),
    r"`cache\['index'\]` .*float32": (
        TypeError,
        lambda: cached({**multi_head().make_cache(B, T), "index": zeros(B)}),
    ),
    r"A state .* a cache of \['index', 'state'\]": lambda: cut(built(ka.Retention(2, 4))),
    "cache=2, length=3": lambda: cut(multi_head(), ints(3)),
    r"first 64 tokens of this cache are shared.*\[3, 3\]": cut_shared,
    "`length` must be integers.*float32": (TypeError, lambda: cut(multi_head(), zeros(B))),
    r"\[3, 3\] tokens in the rows, to be cut to \[3, 1\]": lambda: cut(
        multi_head(sliding_window=2), np.array([3, 1])
    ),
    "2 entries.*up to 3 in a row": lambda: cached(multi_head().make_cache(B, T - 1)),
    "length=0": lambda: multi_head().make_cache(B, 0),
    "one of floats, or int8.*'int32'": lambda: multi_head().make_cache(B, T, dtype="int32"),
    "batch_size=-1": lambda: multi_head().make_cache(-1, T),
    "Received also: value$": (lambda: cached(value=X), lambda: cached(x=[X, X])),
    "a cache of 2 tokens for a window of 2": lambda: cached(
        layer=multi_head(sliding_window=2), return_attention_scores=True
    ),
    # Keys and values of another layer
    "if, and only if, it was made with `reuse`.*reuse=.*, and (no|a) `key_value`": (
        lambda: multi_head()(X, key_value=handed()),
        lambda: block(reuse="value", causal=True)(symbol(T, D)),
    ),
    "over plain projections. Received: MultiHeadLatent": lambda: ka.MultiHeadLatentAttention(
        2, 4, latent_dim=4, rope_dim=2
    )(X, return_key_value=True),
    r"with 'key' and 'value'. Received: \['key'\]": lambda: reusing({"key": zeros(B, T, 2, 4)}),
    r"`key_value\['key'\]` .* \(2, 4\). Received: \(1, 4\)": lambda: reusing(handed(1)),
    r"an empty cache, {}. Received: \['index'": lambda: reusing(
        handed(), cache=multi_head().make_cache(B, T)
    ),
    r"no symbolic tensors. Received: a cache of \['index'": (
        TypeError,
        lambda: multi_head()(
            symbol(T, D), cache=multi_head().make_cache(B, T), return_key_value=True
        ),
    ),
    "MultiHeadAttention has no weights": lambda: ka.MultiHeadAttention(2, 4).cache_context(Y),
    "<KerasTensor": (TypeError, lambda: decoder().cache_context(symbol(S, D))),
    "it has no projections": lambda: ka.Attention().make_cache(B, T),
    "Location depends": lambda: ka.Attention(2, 4, score=scores.Location(5)).make_cache(B, T),
    "mode='predictive' depends": lambda: ka.LocalAttention(
        2, "predictive", num_heads=2, key_dim=4
    ).make_cache(B, T),
    "would see tokens after it": lambda: ka.SelfAttention(
        2, 4, pattern=patterns.SlidingWindow(1, 1)
    ).make_cache(B, T),
    "Layout must implement `update`": (TypeError, lambda: kv_cache.Layout().update(*[None] * 5)),
}
