"""What is raised by recurrent layers and by losses."""

import keras

import keras_attention as ka
from keras_attention.layers import kv_cache
from tests.errors.calls import B, D, S, T, X, Y, built_cell, cell, load_unbuilt, zeros

# A call, the type of its exception, and a pattern in the message: what was expected and what came.
ROWS = {
    # AttentionCell
    "an unknown mode of a cell": (
        lambda: cell(mode="dzmitry"),
        ValueError,
        r"`mode` must be one of \('bahdanau', 'luong'\)\. Received: mode='dzmitry'",
    ),
    "a context beside a_t": (
        lambda: cell(attention_dim=3, output_context=True),
        ValueError,
        r"with `attention_dim` the output is a_t\. Received: output_context=True, attention_dim=3",
    ),
    "bahdanau without input feeding": (
        lambda: cell(input_feeding=False),
        ValueError,
        r"`input_feeding=False` is for mode='luong'.*Received: input_feeding=False",
    ),
    "a layout of a cache without an update": (
        lambda: kv_cache.Layout().update({}, None, None, None, "float32"),
        TypeError,
        r"Layout must implement `update`\.",
    ),
    "weights of a layer that nobody has built": (
        load_unbuilt,
        ValueError,
        r"The file has weights of 'inner', which is not built.*Received: an unbuilt SelfAttention",
    ),
    "a recurrent layer of another cell": (
        lambda: ka.AttentionRNN(keras.layers.GRUCell(4)),
        TypeError,
        r"`cell` must be an AttentionCell\. Received: cell=<GRUCell.*\(of type GRUCell\)",
    ),
    "a recurrent layer that keeps states": (
        lambda: ka.AttentionRNN(cell(), stateful=True),
        ValueError,
        r"keeps no states between calls: .*Received: stateful=True",
    ),
    "a recurrent layer without a memory": (
        lambda: keras.layers.Bidirectional(ka.AttentionRNN(cell()))(X),
        ValueError,
        r"attends to a memory.*`keras.layers.RNN\(cell\)`.*sequences\.shape=\(2, 3, 4\), no memory",
    ),
    "a cell of an attention without weights": (
        lambda: ka.AttentionCell(keras.layers.GRUCell(4), ka.LinearAttention(2, 4)),
        ValueError,
        r"cannot take this layer: it sums over tokens instead of having weights\. "
        r"Received: .*LinearAttention",
    ),
    "a cell of an attention that sees later tokens": (
        lambda: ka.AttentionCell(keras.layers.GRUCell(4), ka.LongformerAttention(2, 4, 1)),
        ValueError,
        r"cannot take this layer: its global tokens attend to later ones\. Received: .*Longformer",
    ),
    "a layer for a cell": (
        lambda: ka.AttentionCell(keras.layers.Dense(3), "dot"),
        TypeError,
        r"`cell` must be a cell for `keras.layers.RNN`.*Received: cell=<Dense",
    ),
    "a cell that attends itself": (
        lambda: ka.AttentionCell(cell(), "dot"),
        TypeError,
        r"that does not attend itself\. Received: cell=<AttentionCell",
    ),
    "an attention of a cell that is none": (
        lambda: ka.AttentionCell(keras.layers.GRUCell(D), 3),
        TypeError,
        r"`attention` must be an Attention layer, a score.*Received: attention=3 \(of type int\)",
    ),
    "a cell whose attention draws": (
        lambda: ka.AttentionCell(keras.layers.GRUCell(D), ka.Attention(normalization="hard")),
        ValueError,
        r"no normalization that draws random numbers.*Received: normalization=Hard",
    ),
    "a cell without a memory": (
        lambda: keras.layers.RNN(cell())(X),
        ValueError,
        r"attends to a memory.*pass `initial_state=cell\.initial_state\(memory\)`.*Received: none",
    ),
    "a cell whose states are kept": (
        lambda: keras.layers.RNN(kept := cell(), stateful=True)(
            X, initial_state=kept.initial_state(Y)
        ),
        ValueError,
        r"attends to a memory.*`stateful=True` keeps none: to go on, pass `cell\.initial_state",
    ),
    "an initial state for the sake of itself": (
        lambda: cell().get_initial_state(B),
        ValueError,
        r"attends to a memory.*Received: no initial state",
    ),
    "an initial state without a memory": (
        lambda: built_cell()[1](X, initial_state=[zeros(B, D)]),
        ValueError,
        r"attends to a memory.*Received: an initial state that does not begin with one",
    ),
    "a step without a memory": (
        lambda: built_cell()[0](X[:, 0], [zeros(B, D)]),
        ValueError,
        r"attends to a memory.*Received: states without one",
    ),
    "the size of an output without a memory": (
        lambda: cell(mode="luong").output_size,
        ValueError,
        r"depends on a memory.*Received: memory\.shape=\(None, None, None\)",
    ),
    "alignments over an unknown length": (
        lambda: keras.layers.RNN(aligned := cell(return_attention_scores=True))(
            keras.Input((T, D)), initial_state=aligned.initial_state(keras.Input((None, D)))
        ),
        ValueError,
        r"positions are known, for `return_attention_scores=True`.*shape=\(None, None, 4\)",
    ),
    "rank of a memory": (
        lambda: cell().initial_state(X[:, 0]),
        ValueError,
        r"`memory` must have 3 axes, \(batch, positions, features\)\. Received.*\(2, 4\)",
    ),
    "a memory of unknown features": (
        lambda: cell().initial_state(keras.Input((S, None))),
        ValueError,
        r"`memory` must have a known number of features\..*shape=\(None, 5, None\)",
    ),
    "a second memory of another size": (
        lambda: built_cell()[0].initial_state(zeros(B, S, 7)),
        ValueError,
        r"Features of memories must be equal\. Received: before=4, now=7",
    ),
    "a mask of another length than the memory": (
        lambda: cell().initial_state(Y, mask=zeros(B, T, dtype="bool")),
        ValueError,
        r"Lengths of `memory` and its mask must be equal\. Received: memory=5, mask=3",
    ),
    "too many states": (
        lambda: cell().initial_state(Y, [zeros(B, D)] * 2),
        ValueError,
        r"`states` must be the 1 of the wrapped cell, or the 3 that an earlier call.*Received: 2",
    ),
    "states of another cell": (
        lambda: built_cell()[1](
            X,
            initial_state=built_cell()[0].initial_state(Y, [zeros(B, 7), zeros(B, D), zeros(B, 1)]),
        ),
        ValueError,
        r"Features of the first state must be equal\. Received: cell=4, states=7",
    ),
    "states of another batch than the memory": (
        lambda: cell().initial_state(Y, zeros(3, D)),
        ValueError,
        r"Batch sizes must be equal\. Received: memory=2, states=3",
    ),
    "a memory of another batch than the sequences": (
        lambda: built_cell()[1](X, initial_state=built_cell()[0].initial_state(zeros(3, S, D))),
        ValueError,
        r"Batch sizes must be equal\. Received: sequences=2, memory=3",
    ),
    "smoothing away the target": (
        lambda: ka.losses.SmoothedCrossentropy(1.0),
        ValueError,
        r"`label_smoothing`.*Received: label_smoothing=1\.0",
    ),
    "a target to ignore that is no integer": (
        lambda: ka.losses.SmoothedCrossentropy(ignore_class="pad"),
        TypeError,
        r"`ignore_class` must be an integer or None\. Received: ignore_class='pad'",
    ),
    "an argument by its former name too": (
        lambda: ka.losses.SmoothedCrossentropy(ignore_class=1, ignore=2),
        TypeError,
        r"^SmoothedCrossentropy takes `ignore_class`, whose former name is `ignore`: "
        r"pass one of the two\. Received: ignore_class=1, ignore=2$",
    ),
    "targets that are not those of the logits": (
        lambda: ka.losses.SmoothedCrossentropy()(zeros(B, T), zeros(B, S, D)),
        ValueError,
        r"logits with the axes of the integer targets.*shape=\(2, 3\), y_pred.shape=\(2, 5, 4\)",
    ),
    "weights of another batch": (
        lambda: ka.losses.SmoothedCrossentropy()(zeros(B, T), zeros(B, T, D), zeros(T)),
        ValueError,
        r"`sample_weight` must broadcast to the leading axes.*shape=\(2, 3\).*shape=\(3,\)",
    ),
    "splitting what has no alignments": (
        lambda: built_cell()[0].split_outputs(X),
        ValueError,
        r"`split_outputs` is for cells with `return_attention_scores=True`\. Received.*False",
    ),
}
