"""What is raised for shapes, counts, masks and slots as they are given."""

import keras
import numpy as np

import keras_attention as ka
from keras_attention import convert, normalizations, ops, patterns, positions
from tests.errors.calls import ADDITIVE, B, D, S, T, Unbegun, X, Y, built_attention, heads, nested

# A call, the type of its exception, and a pattern in the message: what was expected and what came.
ROWS = {
    "patterns nested too deep": (
        lambda: nested(patterns.Causal(), 101),
        ValueError,
        r"nested 100 deep\. Received: Not",
    ),
    "a weight of too many elements": (
        lambda: ka.MultiHeadAttention(10**9, 10**9).build((B, T, D)),
        ValueError,
        r"`query` would have more than 1099511627776 elements.*shape \(4, 1000000000, 1000000000\)",
    ),
    "distances without number": (
        lambda: positions.RelativeBias(32, 2**20 + 1),
        ValueError,
        r"`max_distance` must be at most 1048576.*Received: max_distance=1048577",
    ),
    # convert: all of what it refuses is in convert/test_refused.py
    "a layer that is not converted": (
        lambda: convert.from_keras(keras.layers.Dense(2)),
        ValueError,
        r"Cannot convert a keras Dense named 'dense.*': expected one of keras: AdditiveAttention",
    ),
    # shapes
    "rank of query": (
        lambda: ops.attend(*heads((B, T, D), (B, S, 2, D), (B, S, 2, D))),
        ValueError,
        r"`query` must have 4 axes, \(B, T, H, K\)\. Received: query\.shape=\(2, 3, 4\)",
    ),
    "rank of key": (
        lambda: ops.attend(*heads((B, T, 2, D), (S, 2, D), (B, S, 2, D))),
        ValueError,
        r"`key` must have 4 axes, \(B, S, G, K\)\. Received: key\.shape=\(5, 2, 4\)",
    ),
    "rank of value": (
        lambda: ops.attend(*heads((B, T, 2, D), (B, S, 2, D), (B, S, 2, D, 1))),
        ValueError,
        r"`value` must have 4 axes, \(B, S, G, V\)\. Received: value\.shape=\(2, 5, 2, 4, 1\)",
    ),
    "batch sizes": (
        lambda: ops.attend(*heads((3, T, 2, D), (B, S, 2, D), (B, S, 2, D))),
        ValueError,
        r"Batch sizes must be equal\. Received: query=3, key=2, value=2",
    ),
    "lengths of key and value": (
        lambda: ops.attend(*heads((B, T, 2, D), (B, S, 2, D), (B, 4, 2, D))),
        ValueError,
        r"Lengths of key and value must be equal\. Received: key=5, value=4",
    ),
    "numbers of heads": (
        lambda: ops.attend(*heads((B, T, 2, D), (B, S, 1, D), (B, S, 2, D))),
        ValueError,
        r"Numbers of heads must be equal\. Received: key=1, value=2",
    ),
    "numbers of heads that do not divide": (
        lambda: ops.attend(*heads((B, T, 3, D), (B, S, 2, D), (B, S, 2, D))),
        ValueError,
        r"Heads of `key` must be as many as those of `query`, or divide them.*query=3, key=2",
    ),
    "numbers of features": (
        lambda: ops.attend(*heads((B, T, 2, 3), (B, S, 2, D), (B, S, 2, D))),
        ValueError,
        r"features that ScaledDot compares must be equal\. Received: query=3, key=4",
    ),
    "a count of zero": (
        lambda: ka.Attention(num_heads=0, key_dim=4),
        ValueError,
        r"argument `num_heads`, expected an integer of at least 1\. Received: num_heads=0",
    ),
    "a count beyond int32": (
        lambda: patterns.SlidingWindow(2**40, 0),
        ValueError,
        r"argument `left`, expected an integer of at most 1073741823\. Received: left=1\d+",
    ),
    "a position beyond int32": (
        lambda: ops.attend(*heads(), query_positions=np.array([0, 1, 2**40])),
        ValueError,
        r"`query_positions` must be within int32, from -2147483648 to 2147483647\. "
        r"Received: 1099511627776",
    ),
    "a count that is a float": (
        lambda: ka.FeedForward(2.0),
        ValueError,
        r"argument `intermediate_dim`.* Received: intermediate_dim=2\.0",
    ),
    "a count that is a bool": (
        lambda: ka.ScaledEmbedding(10, True),
        ValueError,
        r"argument `dim`.* Received: dim=True",
    ),
    "vectors of another size than the table's": (
        lambda: ka.ScaledEmbedding(10, 6)(X, reverse=True),
        ValueError,
        r"`inputs` must be vectors \(\.\.\., 6\) with `reverse=True`\..*"
        r"Received: inputs\.shape=\(2, \d, 4\)",
    ),
    "a rate of one": (
        lambda: ka.TransformerBlock(8, 2, dropout=1),
        ValueError,
        r"`dropout` must be a number in \[0, 1\)\. Received: dropout=1",
    ),
    "a rate that is text": (
        lambda: ops.attend(*heads(), dropout="0.1"),
        ValueError,
        r"`dropout` must be a number in \[0, 1\)\. Received: dropout='0\.1'",
    ),
    "lengths of a layer's key and value": (
        lambda: ka.Attention()(X, Y, X),
        ValueError,
        r"All dimensions of `value` and `key`, except the last.*"
        r"value_shape=\(2, 5, 4\) and key_shape=\(2, 3, 4\)",
    ),
    "a padding mask of another length": (
        lambda: ka.Attention()(X, Y, query_mask=np.ones((B, T + 1), bool)),
        ValueError,
        r"Lengths of `query` and its mask must be equal\. Received: query=3, query_mask=4",
    ),
    "a padding mask with another number of axes": (
        lambda: ka.Attention()(X, Y, value_mask=np.ones((S,), bool)),
        ValueError,
        r"`value_mask` must have 2 axes, \(batch, positions\)\.",
    ),
    "a dict for a tensor": (
        lambda: ka.TransformerBlock(8, 2)({"x": X}),
        TypeError,
        r"TransformerBlock takes dense tensors\. Pass each tensor of a dict.*Received: a dict",
    ),
    "a projection before it is made": (
        lambda: ka.MultiHeadAttention(2, 4).query_dense,
        AttributeError,
        r"MultiHeadAttention has no `query_dense` yet\. Call it once, or build.*an unbuilt",
    ),
    "the dtype of a layer whose parts are quantized": (
        lambda: setattr(ka.FeedForward(8), "dtype_policy", "int8_from_float32"),
        ValueError,
        r"`dtype_policy` of a layer made of others.*'int8_from_float32', quantization_mode \['int8",
    ),
    "a mask by the name of another library": (
        lambda: ka.MultiHeadAttention(2, 4)(X, X, key_padding_mask=np.ones((B, T), bool)),
        TypeError,
        r"MultiHeadAttention takes no `key_padding_mask`\. Its masks are `query_mask` \(B, T\) and "
        r"`value_mask` \(B, S\) for padding, .*True = attend\. Received: key_padding_mask of type",
    ),
    "a mask of a block by another name": (
        lambda: ka.TransformerBlock(8, 2)(X, padding_mask=np.ones((B, T), bool)),
        TypeError,
        r"TransformerBlock takes no `padding_mask`\. Its masks are `mask` \(B, T\) and ",
    ),
    "one mask for two sequences": (
        lambda: ka.Attention()(X, Y, mask=np.ones((B, S), bool)),
        ValueError,
        r"`mask` must be the padding \(B, T\) of one sequence .*Received: a `value` beside it",
    ),
    "one mask for a list": (
        lambda: ka.Attention()([X, Y], mask=np.ones((B, S), bool)),
        ValueError,
        r"`mask` must be .*a list of masks for a list.*Received: a list and a mask of type",
    ),
    "a mask of pairs as padding": (
        lambda: ka.SelfAttention(2, 4)(X, mask=np.ones((B, T, T), bool)),
        ValueError,
        r"`mask` must be .*of pairs, .*as `attention_mask`\. Received: mask\.shape=\(2, 3, 3\)",
    ),
    "one symbolic mask for two sequences": (
        lambda: ka.Attention()(
            keras.Input((T, D)), keras.Input((S, D)), mask=keras.Input((S,), dtype="bool")
        ),
        ValueError,
        r"`mask` must be the padding \(B, T\) of one sequence .*Received: a `value` beside it",
    ),
    "an attention mask of another length": (
        lambda: ka.MultiHeadAttention(2, 4)(X, Y, attention_mask=np.ones((T, S + 1), bool)),
        ValueError,
        r"Lengths of the mask and of `key` must be equal\. Received: mask=6, key=5",
    ),
    "padding as an attention mask": (
        lambda: ka.MultiHeadAttention(2, 4)(X, Y, attention_mask=np.ones((B, S), bool)),
        ValueError,
        r"An `attention_mask` of two axes is \(T, S\), here 3 queries, and the same for all rows\. "
        r"Pass padding, \(B, S\) or \(B, T\), as `value_mask` or `query_mask`\. "
        r"Received: attention_mask\.shape=\(2, 5\)",
    ),
    "other features than the layer was built for": (
        lambda: built_attention(query=X[..., :2]),
        ValueError,
        r"`query` must have 4 features, as when the layer was built\. "
        r"Received: query\.shape=\(2, 3, 2\)",
    ),
    "a query of another number of axes": (
        lambda: built_attention(
            *(np.zeros(shape, "float32") for shape in ((B, T, 1, D), (B, S, 1, 6), (B, S, 1, 4)))
        ),
        ValueError,
        r"`query` must have 3 axes, as when the layer was built\. "
        r"Received: query\.shape=\(2, 3, 1, 4\)",
    ),
    "key and value swapped": (
        lambda: built_attention(value=Y, key=np.zeros((B, S, 6), "float32")),
        ValueError,
        r"`key` must have 4 features, .*the order of inputs is query, value, key",
    ),
    # saving: the slots
    "an unknown score": (
        lambda: ka.Attention(score="dots"),
        ValueError,
        r"Unknown score 'dots'\. Expected one of \['additive', .*\].* subclass of Score",
    ),
    "an unknown normalization": (
        lambda: ka.AttentionPooling(normalization="softmin"),
        ValueError,
        r"Unknown normalization 'softmin'\. Expected one of \['adaptive_entmax', ",
    ),
    "an unknown pattern": (
        lambda: ka.TransformerBlock(8, 2, pattern="casual"),
        ValueError,
        r"Unknown pattern 'casual'\. Expected one of \['causal'\]",
    ),
    "an unknown position": (
        lambda: ka.Attention(position="sideways"),
        ValueError,
        r"Unknown position 'sideways'\.",
    ),
    "a score that does not begin as a layer": (
        lambda: ka.Attention(score=Unbegun(2)),
        TypeError,
        r"The score is a Keras layer: `Unbegun.__init__` must begin with "
        r"`super\(\)\.__init__\(\*\*kwargs\)`",
    ),
    "a slot of another kind": (
        lambda: ka.Attention(score=patterns.Causal()),
        TypeError,
        r"`score` must be a string, an instance of Score or its saved config\. "
        r"Received: Causal\(\) \(of type Causal\)",
    ),
    "a saved config of another kind": (
        lambda: patterns.get(keras.saving.serialize_keras_object(normalizations.Softmax())),
        TypeError,
        r"`pattern` must be .* Received: Softmax\(\) \(of type Softmax\)",
    ),
    # masks
    "a symbolic float mask": (
        lambda: ka.Attention()(
            keras.Input((T, D)), keras.Input((S, D)), attention_mask=keras.Input((T, S))
        ),
        TypeError,
        r"`attention_mask` must be boolean, True = attend\. Received dtype float32.*dtype='bool'",
    ),
    "an additive mask": (
        lambda: ops.attend(*heads(), mask=ADDITIVE),
        ValueError,
        r"`mask` must be boolean, .*Received dtype float32 with the value -1000000000\.0.*bias",
    ),
    "an additive mask of a layer": (
        lambda: ka.Attention()(X, Y, attention_mask=ADDITIVE),
        ValueError,
        r"`attention_mask` must be boolean, .*with the value -1000000000\.0",
    ),
    "a mask of counts": (
        lambda: ka.Attention()(X, Y, value_mask=np.array([[3, 1, 0, 0, 0]] * B, "int32")),
        ValueError,
        r"`value_mask` must be boolean, .*Received dtype int32 with the value 3",
    ),
    "an additive mask of a block": (
        lambda: ka.TransformerBlock(8, 2, kernel_initializer="zeros")(
            X, mask=np.array([[0.0, 0.0, -1e9]] * B)
        ),
        ValueError,
        r"`mask` must be boolean, .*with the value -1000000000\.0",
    ),
}
