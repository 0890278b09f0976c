"""Attention along chosen axes does not mix the others."""

import keras
import pytest

from keras_attention import MultiHeadAttention
from tests.arrays import close, random

# Attention along chosen axes

OTHER_ROWS = {
    "batch and free axis": (2, (2, 3, 4, 8), (3, 2, 5, 8)),
    "two free axes": (3, (2, 3, 4, 5, 8), (2, 4, 3, 6, 8)),
    "a free axis to broadcast": (2, (2, 3, 4, 8), (2, 1, 5, 8)),
}


@pytest.mark.parametrize("name", OTHER_ROWS)
def test_rows_of_other_examples_are_not_attended_to(name):
    axes, query_shape, value_shape = OTHER_ROWS[name]
    layer = MultiHeadAttention(2, 3, attention_axes=axes)
    message = r"(Batch sizes|Sizes of axis \d, which is not attended over,) must be equal"
    with pytest.raises(ValueError, match=message):
        layer(keras.KerasTensor(query_shape), keras.KerasTensor(value_shape))
    layer.build(query_shape, query_shape)
    with pytest.raises(ValueError, match=message):
        layer(random(*query_shape), random(*value_shape))


@pytest.mark.parametrize("jit_compile", [False, True])
def test_rows_of_other_examples_are_not_attended_to_where_sizes_are_unknown(jit_compile):
    if jit_compile and keras.backend.backend() == "torch":
        pytest.skip("nothing to compile")
    query, value = (keras.Input((None, None, None, 8)) for _ in range(2))
    model = keras.Model([query, value], MultiHeadAttention(2, 3, attention_axes=3)(query, value))
    model.compile(jit_compile=jit_compile)
    arrays = [random(2, 3, 4, 5, 8), random(2, 3, 4, 6, 8)]
    close(model.predict(arrays, verbose=0), model(arrays))
    # As many rows, of other axes. Where lengths are unknown, the error is the backend's.
    with pytest.raises(Exception, match=r"must be equal|[Rr]eshape"):
        model.predict([arrays[0], random(2, 4, 3, 6, 8)], verbose=0)
