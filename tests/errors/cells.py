"""What is raised by recurrent layers and by losses."""

import keras

import keras_attention as ka
from keras_attention.layers import kv_cache
from tests.errors.calls import B, D, S, T, X, Y, built_cell, cell, load_unbuilt, zeros

ROWS = {
    # AttentionCell
    r"with `attention_dim` the output is a_t\. "
    r"Received: output_context=True, attention_dim=3": lambda: cell(
        attention_dim=3, output_context=True
    ),
    r"`input_feeding=False` is for mode='luong'.*Received: input_feeding=False": lambda: cell(
        input_feeding=False
    ),
    r"Layout must implement `update`\.": (
        TypeError,
        lambda: kv_cache.Layout().update(None, {}, None, None, None),
    ),
    r"The file has weights of 'inner', which is not built.*"
    r"Received: an unbuilt SelfAttention": load_unbuilt,
    r"`cell` must be an AttentionCell\. Received: cell=<GRUCell.*\(of type GRUCell\)": (
        TypeError,
        lambda: ka.AttentionRNN(keras.layers.GRUCell(4)),
    ),
    r"keeps no states between calls: .*Received: stateful=True": lambda: ka.AttentionRNN(
        cell(), stateful=True
    ),
    r"attends to a memory.*`keras.layers.RNN\(cell\)`.*sequences\.shape=\(2, 3, 4\), "
    r"no memory": lambda: keras.layers.Bidirectional(ka.AttentionRNN(cell()))(X),
    r"cannot take this layer: it sums over tokens instead of having weights\. "
    r"Received: .*LinearAttention": lambda: ka.AttentionCell(
        keras.layers.GRUCell(4), ka.LinearAttention(2, 4)
    ),
    r"cannot take this layer: its global tokens attend to later ones\. "
    r"Received: .*Longformer": lambda: ka.AttentionCell(
        keras.layers.GRUCell(4), ka.LongformerAttention(2, 4, 1)
    ),
    r"`cell` must be a cell for `keras.layers.RNN`.*Received: cell=<Dense": (
        TypeError,
        lambda: ka.AttentionCell(keras.layers.Dense(3), "dot"),
    ),
    r"that does not attend itself\. Received: cell=<AttentionCell": (
        TypeError,
        lambda: ka.AttentionCell(cell(), "dot"),
    ),
    r"`attention` must be an Attention layer, a score.*Received: attention=3 \(of type int\)": (
        TypeError,
        lambda: ka.AttentionCell(keras.layers.GRUCell(D), 3),
    ),
    r"no normalization that draws random numbers.*Received: normalization=Hard": lambda: (
        ka.AttentionCell(keras.layers.GRUCell(D), ka.Attention(normalization="hard"))
    ),
    r"attends to a memory.*pass `initial_state=cell\.initial_state\(memory\)`.*"
    r"Received: none": lambda: keras.layers.RNN(cell())(X),
    r"attends to a memory.*`stateful=True` keeps none: to go on, pass "
    r"`cell\.initial_state": lambda: keras.layers.RNN(kept := cell(), stateful=True)(
        X, initial_state=kept.initial_state(Y)
    ),
    r"attends to a memory.*Received: no initial state": lambda: cell().get_initial_state(B),
    r"attends to a memory.*Received: an initial state that does not begin with one": lambda: (
        built_cell()[1](X, initial_state=[zeros(B, D)])
    ),
    r"attends to a memory.*Received: states without one": lambda: built_cell()[0](
        X[:, 0], [zeros(B, D)]
    ),
    r"depends on a memory.*Received: memory\.shape=\(None, None, None\)": lambda: (
        cell(mode="luong").output_size
    ),
    r"positions are known, for `return_attention_scores=True`.*shape=\(None, None, 4\)": lambda: (
        keras.layers.RNN(aligned := cell(return_attention_scores=True))(
            keras.Input((T, D)), initial_state=aligned.initial_state(keras.Input((None, D)))
        )
    ),
    r"`memory` must have 3 axes, \(batch, positions, features\)\. Received.*\(2, 4\)": lambda: (
        cell().initial_state(X[:, 0])
    ),
    r"`memory` must have a known number of features\..*shape=\(None, 5, None\)": lambda: (
        cell().initial_state(keras.Input((S, None)))
    ),
    r"Features of memories must be equal\. Received: before=4, now=7": lambda: built_cell()[
        0
    ].initial_state(zeros(B, S, 7)),
    r"Lengths of `memory` and its mask must be equal\. Received: memory=5, mask=3": lambda: (
        cell().initial_state(Y, mask=zeros(B, T, dtype="bool"))
    ),
    r"`states` must be the 1 of the wrapped cell, or the 3 that an earlier call.*"
    r"Received: 2": lambda: cell().initial_state(Y, [zeros(B, D)] * 2),
    r"Features of the first state must be equal\. Received: cell=4, states=7": lambda: built_cell()[
        1
    ](X, initial_state=built_cell()[0].initial_state(Y, [zeros(B, 7), zeros(B, D), zeros(B, 1)])),
    r"Batch sizes must be equal\. Received: memory=2, states=3": lambda: cell().initial_state(
        Y, zeros(3, D)
    ),
    r"Batch sizes must be equal\. Received: sequences=2, memory=3": lambda: built_cell()[1](
        X, initial_state=built_cell()[0].initial_state(zeros(3, S, D))
    ),
    r"^SmoothedCrossentropy takes `ignore_class`, whose former name is `ignore`: "
    r"pass one of the two\. Received: ignore_class=1, ignore=2$": (
        TypeError,
        lambda: ka.losses.SmoothedCrossentropy(ignore_class=1, ignore=2),
    ),
    r"logits with the axes of the integer targets.*shape=\(2, 3\), y_pred.shape=\(2, "
    r"5, 4\)": lambda: ka.losses.SmoothedCrossentropy()(zeros(B, T), zeros(B, S, D)),
    r"`sample_weight` must broadcast to the leading axes.*shape=\(2, 3\).*shape=\(3,\)": lambda: (
        ka.losses.SmoothedCrossentropy()(zeros(B, T), zeros(B, T, D), zeros(T))
    ),
    r"`split_outputs` is for cells with `return_attention_scores=True`\. "
    r"Received.*False": lambda: built_cell()[0].split_outputs(X),
}
