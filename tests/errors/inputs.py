"""What is raised for shapes, counts, masks and slots as they are given."""

import keras
import numpy as np

import keras_attention as ka
from keras_attention import convert, normalizations, ops, patterns, positions
from tests.errors.calls import ADDITIVE, B, D, S, T, Unbegun, X, Y, built_attention, heads, nested

ROWS = {
    r"nested 100 deep\. Received: Not": lambda: nested(patterns.Causal(), 101),
    r"`query` would have more than 1099511627776 elements.*shape \(4, 1000000000, "
    r"1000000000\)": lambda: ka.MultiHeadAttention(10**9, 10**9).build((B, T, D)),
    r"`max_distance` must be at most 1048576.*Received: max_distance=1048577": lambda: (
        positions.RelativeBias(32, 2**20 + 1)
    ),
    # convert: all of what it refuses is in convert/test_refused.py
    r"Cannot convert a keras Dense named 'dense.*': expected one of keras: "
    r"AdditiveAttention": lambda: convert.from_keras(keras.layers.Dense(2)),
    # shapes
    r"`query` must have 4 axes, \(B, T, H, K\)\. Received: query\.shape=\(2, 3, 4\)": lambda: (
        ops.attend(*heads((B, T, D), (B, S, 2, D), (B, S, 2, D)))
    ),
    r"`key` must have 4 axes, \(B, S, G, K\)\. Received: key\.shape=\(5, 2, 4\)": lambda: (
        ops.attend(*heads((B, T, 2, D), (S, 2, D), (B, S, 2, D)))
    ),
    r"`value` must have 4 axes, \(B, S, G, V\)\. "
    r"Received: value\.shape=\(2, 5, 2, 4, 1\)": lambda: ops.attend(
        *heads((B, T, 2, D), (B, S, 2, D), (B, S, 2, D, 1))
    ),
    r"Batch sizes must be equal\. Received: query=3, key=2, value=2": lambda: ops.attend(
        *heads((3, T, 2, D), (B, S, 2, D), (B, S, 2, D))
    ),
    r"Lengths of key and value must be equal\. Received: key=5, value=4": lambda: ops.attend(
        *heads((B, T, 2, D), (B, S, 2, D), (B, 4, 2, D))
    ),
    r"Numbers of heads must be equal\. Received: key=1, value=2": lambda: ops.attend(
        *heads((B, T, 2, D), (B, S, 1, D), (B, S, 2, D))
    ),
    r"Heads of `key` must be as many as those of `query`, or divide them.*query=3, "
    r"key=2": lambda: ops.attend(*heads((B, T, 3, D), (B, S, 2, D), (B, S, 2, D))),
    r"features that ScaledDot compares must be equal\. Received: query=3, key=4": lambda: (
        ops.attend(*heads((B, T, 2, 3), (B, S, 2, D), (B, S, 2, D)))
    ),
    r"argument `num_heads`, expected an integer of at least 1\. Received: num_heads=0": lambda: (
        ka.Attention(num_heads=0, key_dim=4)
    ),
    r"argument `left`, expected an integer of at most 1073741823\. Received: left=1\d+": lambda: (
        patterns.SlidingWindow(2**40, 0)
    ),
    r"`query_positions` must be within int32, from -2147483648 to 2147483647\. "
    r"Received: 1099511627776": lambda: ops.attend(
        *heads(), query_positions=np.array([0, 1, 2**40])
    ),
    r"`inputs` must be vectors \(\.\.\., 6\) with `reverse=True`\..*"
    r"Received: inputs\.shape=\(2, \d, 4\)": lambda: ka.ScaledEmbedding(10, 6)(X, reverse=True),
    r"`dropout` must be a number in \[0, 1\)\. Received: dropout=1": lambda: ka.TransformerBlock(
        8, 2, dropout=1
    ),
    r"`dropout` must be a number in \[0, 1\)\. Received: dropout='0\.1'": lambda: ops.attend(
        *heads(), dropout="0.1"
    ),
    r"All dimensions of `value` and `key`, except the last.*"
    r"value_shape=\(2, 5, 4\) and key_shape=\(2, 3, 4\)": lambda: ka.Attention()(X, Y, X),
    r"Lengths of `query` and its mask must be equal\. Received: query=3, query_mask=4": lambda: (
        ka.Attention()(X, Y, query_mask=np.ones((B, T + 1), bool))
    ),
    r"`value_mask` must have 2 axes, \(batch, positions\)\.": lambda: ka.Attention()(
        X, Y, value_mask=np.ones((S,), bool)
    ),
    r"TransformerBlock takes dense tensors\. Pass each tensor of a dict.*Received: a dict": (
        TypeError,
        lambda: ka.TransformerBlock(8, 2)({"x": X}),
    ),
    r"MultiHeadAttention has no `query_dense` yet\. Call it once, or build.*an unbuilt": (
        AttributeError,
        lambda: ka.MultiHeadAttention(2, 4).query_dense,
    ),
    r"`dtype_policy` of a layer made of others.*'int8_from_float32', "
    r"quantization_mode \['int8": lambda: setattr(
        ka.FeedForward(8), "dtype_policy", "int8_from_float32"
    ),
    r"MultiHeadAttention takes no `key_padding_mask`\. Its masks are `query_mask` \(B, T\) and "
    r"`value_mask` \(B, S\) for padding, .*True = attend\. Received: key_padding_mask of type": (
        TypeError,
        lambda: ka.MultiHeadAttention(2, 4)(X, X, key_padding_mask=np.ones((B, T), bool)),
    ),
    r"TransformerBlock takes no `padding_mask`\. Its masks are `mask` \(B, T\) and ": (
        TypeError,
        lambda: ka.TransformerBlock(8, 2)(X, padding_mask=np.ones((B, T), bool)),
    ),
    r"`mask` must be the padding \(B, T\) of one sequence .*"
    r"Received: a `value` beside it": (
        ValueError,
        lambda: ka.Attention()(X, Y, mask=np.ones((B, S), bool)),
        lambda: ka.Attention()(
            keras.Input((T, D)), keras.Input((S, D)), mask=keras.Input((S,), dtype="bool")
        ),
    ),
    r"`mask` must be .*a list of masks for a list.*Received: a list and a mask of type": lambda: (
        ka.Attention()([X, Y], mask=np.ones((B, S), bool))
    ),
    r"`mask` must be .*of pairs, .*as `attention_mask`\. "
    r"Received: mask\.shape=\(2, 3, 3\)": lambda: ka.SelfAttention(2, 4)(
        X, mask=np.ones((B, T, T), bool)
    ),
    r"An `attention_mask` of two axes is \(T, S\), here 3 queries, and the same for all rows\. "
    r"Pass padding, \(B, S\) or \(B, T\), as `value_mask` or `query_mask`\. "
    r"Received: attention_mask\.shape=\(2, 5\)": lambda: ka.MultiHeadAttention(2, 4)(
        X, Y, attention_mask=np.ones((B, S), bool)
    ),
    r"`query` must have 4 features, as when the layer was built\. "
    r"Received: query\.shape=\(2, 3, 2\)": lambda: built_attention(query=X[..., :2]),
    r"`query` must have 3 axes, as when the layer was built\. "
    r"Received: query\.shape=\(2, 3, 1, 4\)": lambda: built_attention(
        *(np.zeros(shape, "float32") for shape in ((B, T, 1, D), (B, S, 1, 6), (B, S, 1, 4)))
    ),
    r"`key` must have 4 features, .*the order of inputs is query, value, key": lambda: (
        built_attention(value=Y, key=np.zeros((B, S, 6), "float32"))
    ),
    # saving: the slots
    r"Unknown score 'dots'\. Expected one of \['additive', .*\].* subclass of Score": lambda: (
        ka.Attention(score="dots")
    ),
    r"Unknown normalization 'softmin'\. Expected one of \['adaptive_entmax', ": lambda: (
        ka.AttentionPooling(normalization="softmin")
    ),
    r"Unknown pattern 'casual'\. Expected one of \['causal'\]": lambda: ka.TransformerBlock(
        8, 2, pattern="casual"
    ),
    r"Unknown position 'sideways'\.": lambda: ka.Attention(position="sideways"),
    r"The score is a Keras layer: `Unbegun.__init__` must begin with "
    r"`super\(\)\.__init__\(\*\*kwargs\)`": (TypeError, lambda: ka.Attention(score=Unbegun(2))),
    r"`pattern` must be .* Received: Softmax\(\) \(of type Softmax\)": (
        TypeError,
        lambda: patterns.get(keras.saving.serialize_keras_object(normalizations.Softmax())),
    ),
    # masks
    r"`attention_mask` must be boolean, True = attend\. Received dtype float32.*dtype='bool'": (
        TypeError,
        lambda: ka.Attention()(
            keras.Input((T, D)), keras.Input((S, D)), attention_mask=keras.Input((T, S))
        ),
    ),
    r"`mask` must be boolean, .*Received dtype float32 with the value "
    r"-1000000000\.0.*bias": lambda: ops.attend(*heads(), mask=ADDITIVE),
    r"`attention_mask` must be boolean, .*with the value -1000000000\.0": lambda: ka.Attention()(
        X, Y, attention_mask=ADDITIVE
    ),
    r"`value_mask` must be boolean, .*Received dtype int32 with the value 3": lambda: (
        ka.Attention()(X, Y, value_mask=np.array([[3, 1, 0, 0, 0]] * B, "int32"))
    ),
    r"`mask` must be boolean, .*with the value -1000000000\.0": lambda: ka.TransformerBlock(
        8, 2, kernel_initializer="zeros"
    )(X, mask=np.array([[0.0, 0.0, -1e9]] * B)),
}
