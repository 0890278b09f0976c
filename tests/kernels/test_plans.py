"""What the sizes of tiles depend on: products beyond 32 bits, and what the machine has."""

import pathlib
import sys

import keras
import pytest

from keras_attention.backend import interface
from keras_attention.kernels.tiles import plans
from keras_attention.kernels.tiles.strategies import Strategy
from keras_attention.spec import AttentionSpec
from tests.problems import on_tensorflow


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="other lengths are known")
def test_sizes_whose_product_is_beyond_32_bits():
    import tensorflow as tf

    sizes = [tf.TensorSpec((), "int32")] * 3

    @tf.function(autograph=False, input_signature=sizes)
    def sequences(batch, queries, keys):
        blocks = Strategy(whole_rows=False, scores=2**21, of_few_heads=2**19)
        return plans.of(blocks, AttentionSpec(), plans.Sizes(batch, 4, 4, queries, keys)).batch

    # 32 · 4 · 4200² is more than 2³¹.
    assert int(sequences(32, 4200, 4200)) == 1
    assert int(sequences(2, 70000, 70000)) == 1
    assert int(sequences(32, 100, 100)) == 32
    assert int(sequences(32, 0, 0)) == 32


@on_tensorflow
def test_whole_rows_are_for_onednn_and_not_for_xla(monkeypatch):
    import tensorflow as tf

    from keras_attention.backend import backend

    def in_a_program(**options):
        seen = []

        def function():
            seen.append(backend.prefers_whole_rows(None))
            return tf.ones(1)

        tf.function(function, autograph=False, **options)()
        return seen

    monkeypatch.setattr(backend, "on_accelerator", lambda _: False)
    monkeypatch.setattr(sys.modules[type(backend).__module__], "_uses_onednn", lambda: True)
    assert backend.prefers_whole_rows(None)
    assert in_a_program() == [True]
    assert in_a_program(jit_compile=True) == [False]
    monkeypatch.setattr(sys.modules[type(backend).__module__], "_uses_onednn", lambda: False)
    assert not backend.prefers_whole_rows(None)


@pytest.mark.any_backend
@pytest.mark.parametrize(
    "flags, fast",
    [
        ("flags : fma avx512_bf16 avx512_vnni", True),
        ("flags : amx_bf16", True),
        ("flags : avx512_vnni", False),
        (OSError("no such file"), False),
    ],
)
def test_products_in_bfloat16_are_for_processors_that_have_them(monkeypatch, flags, fast):
    def read_text(path, encoding):
        if isinstance(flags, OSError):
            raise flags
        return flags

    monkeypatch.setattr(pathlib.Path, "read_text", read_text)
    assert interface.multiplies_bfloat16.__wrapped__() is fast
