"""Every public layer passes the suite of conformance.py, on whichever backend runs."""

import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention import normalizations, patterns, positions, regularizers, scores
from tests import conformance
from tests.compiled import JIT_MODES, SLOW_JIT_MODES
from tests.conformance import Case, numpy, outputs_of


@keras.saving.register_keras_serializable(package="conformance")
class Nearer(positions.Position):
    def bias(self, i, j, num_heads):
        return -0.3 * keras.ops.cast(keras.ops.abs(i - j), "float32")


PROJECTIONS = {
    "kernel_initializer": "he_normal",
    "bias_initializer": "ones",
    "kernel_regularizer": keras.regularizers.L2(0.01),
    "bias_regularizer": keras.regularizers.L1(0.01),
    "activity_regularizer": keras.regularizers.L2(0.02),
    "kernel_constraint": keras.constraints.NonNeg(),
    "bias_constraint": keras.constraints.MaxNorm(3),
}
SLOTS = {
    "score": scores.General(),
    "normalization": normalizations.Sigmoid(),
    "pattern": patterns.Causal() & patterns.SlidingWindow(2, 0),
    "position": Nearer(),
    "scores_regularizer": regularizers.Entropy(0.1),
}
HEAD_OPTIONS = {
    "num_key_value_heads": 1,
    "qk_norm": "rms",
    "logit_soft_cap": 5.0,
    "use_sink": True,
}
POSITION_TABLE = {
    "embeddings_initializer": "ones",
    "embeddings_regularizer": keras.regularizers.L2(0.01),
    "embeddings_constraint": keras.constraints.NonNeg(),
}
HEADS = {"value_dim": 3, "dropout": 0.4, "seed": 3, **PROJECTIONS}
# T ≠ S and unequal numbers of features: (positions, features) of query, value and key.
CROSS = ((5, 8), (7, 6), (7, 4))

ATTENTION = {"use_bias": True, **HEADS, **SLOTS, **HEAD_OPTIONS}
MULTI_HEAD = {
    "use_bias": False,
    "output_shape": (2, 5),
    "attention_axes": (1,),
    "sliding_window": 2,
    "flash_attention": False,
    "use_gate": True,
    **HEADS,
    **SLOTS,
    **HEAD_OPTIONS,
}


def without(arguments, *names):
    return {name: value for name, value in arguments.items() if name not in names}


BLOCK = {
    "dropout": 0.3,
    "activation": "gelu",
    "layer_norm_epsilon": 1e-3,
    "normalize_first": True,
    "causal": True,
    "cross_attention": True,
    "gated": True,
    "norm": "rms",
    "kernel_initializer": "he_normal",
    "bias_initializer": "ones",
    "seed": 3,
    **SLOTS,
    **HEAD_OPTIONS,
}


CASES = [
    Case(
        ka.Attention,
        {"num_heads": 2, "key_dim": 4},
        ATTENTION,
        CROSS,
        listed=True,
        returns_scores=True,
    ),
    Case(
        ka.Attention,
        {"score": "general"},
        None,
        ((5, 8), (7, 6)),
        listed=True,
        returns_scores=True,
        decodes=False,
        id="Attention-without-projections",
    ),
    Case(
        ka.Attention,
        {
            "num_heads": 2,
            "key_dim": 4,
            "use_bias": True,
            "score": scores.Cosine(scale=3.0),
            "pattern": patterns.SlidingWindow(2, 3) | patterns.Prefix(1),
            "position": Nearer(),
        },
        None,
        CROSS,
        returns_scores=True,
        id="Attention-every-slot",
    ),
    Case(
        ka.MultiHeadAttention,
        {"num_heads": 2, "key_dim": 4},
        MULTI_HEAD,
        CROSS,
        returns_scores=True,
    ),
    Case(
        ka.MultiHeadAttention,
        {"num_heads": 4, "key_dim": 4, "position": positions.Rotary(), **HEAD_OPTIONS},
        None,
        CROSS,
        returns_scores=True,
        id="MultiHeadAttention-grouped",
    ),
    Case(
        ka.MultiHeadAttention,
        {
            "num_heads": 2,
            "key_dim": 4,
            "score": scores.Additive(3),
            "normalization": "sparsemax",
            "position": positions.RelativeBias(8, 16),
            "qk_norm": "layer",
        },
        None,
        CROSS,
        returns_scores=True,
        id="MultiHeadAttention-additive",
    ),
    Case(
        ka.MultiHeadAttention,
        {
            "num_heads": 2,
            "key_dim": 4,
            "use_gate": True,
            "output_shape": (2, 3),
            "sliding_window": 3,
        },
        None,
        ((5, 8),),
        returns_scores=True,
        id="MultiHeadAttention-self-gated",
    ),
    Case(
        ka.SelfAttention,
        {"num_heads": 2, "key_dim": 4},
        {"causal": True, **ATTENTION},
        returns_scores=True,
        decodes=False,
    ),
    Case(
        ka.LocalSelfAttention,
        {"num_heads": 2, "key_dim": 4, "neighbors": 1},
        {"rate": 2, "causal": True, **ATTENTION},
        returns_scores=True,
        decodes=False,
    ),
    Case(
        ka.AtrousSelfAttention,
        {"num_heads": 2, "key_dim": 4, "rate": 2},
        {"causal": True, **ATTENTION},
        returns_scores=True,
        decodes=False,
    ),
    Case(
        ka.SparseSelfAttention,
        {"num_heads": 2, "key_dim": 4, "rate": 2},
        {"causal": True, **ATTENTION},
        returns_scores=True,
        decodes=False,
    ),
    Case(
        ka.LocalAttention,
        {"window": 2, "num_heads": 2, "key_dim": 4},
        {
            "mode": "predictive",
            "units": 3,
            "center_initializer": "ones",
            **ATTENTION,
            "score": "dot",
        },
        CROSS,
        returns_scores=True,
    ),
    Case(
        ka.LocalAttention,
        {"window": 3, "mode": "predictive", "num_heads": 2, "key_dim": 4},
        None,
        CROSS,
        returns_scores=True,
        decodes=False,
        id="LocalAttention-predictive",
    ),
    Case(
        ka.RelativePositionAttention,
        {"num_heads": 2, "key_dim": 4, "max_distance": 2},
        {
            "use_values": False,
            "per_head": True,
            **POSITION_TABLE,
            **without(ATTENTION, "position"),
            "score": "dot",
        },
        CROSS,
        returns_scores=True,
    ),
    Case(
        ka.HardAttention,
        {"num_heads": 2, "key_dim": 4},
        {
            "gradient": "reinforce",
            "temperature": 0.5,
            **without(ATTENTION, "normalization", "use_sink"),
        },
        CROSS,
        returns_scores=True,
    ),
    Case(
        ka.TransformerBlock,
        {"intermediate_dim": 16, "num_heads": 2},
        BLOCK,
        returns_scores=True,
        decodes=False,
    ),
    Case(
        ka.TransformerBlock,
        {"intermediate_dim": 16, "num_heads": 2, "normalize_first": True, "gated": True},
        None,
        returns_scores=True,
        decodes=False,
        id="TransformerBlock-pre-norm",
    ),
    Case(
        ka.TransformerBlock,
        {"intermediate_dim": 16, "num_heads": 2, "causal": True, "cross_attention": True},
        None,
        ((5, 8), (7, 6)),
        returns_scores=True,
        id="TransformerBlock-decoder",
    ),
    Case(
        ka.TransformerBlock,
        {
            "intermediate_dim": 16,
            "num_heads": 4,
            "causal": True,
            "cross_attention": True,
            "normalize_first": True,
            "norm": "rms",
            "gated": True,
            "position": "rotary",
            "score": scores.Dot(),
            **HEAD_OPTIONS,
        },
        None,
        ((5, 8), (7, 6)),
        returns_scores=True,
        id="TransformerBlock-decoder-of-today",
    ),
    Case(
        ka.AttentionPooling,
        {},
        None,
        returns_scores=True,
        carries_mask=False,
    ),
    Case(
        ka.AttentionPooling,
        {"num_queries": 3, "num_heads": 2, "key_dim": 4},
        {
            "value_dim": 3,
            "score": "dot",
            "normalization": "sigmoid",
            "dropout": 0.2,
            "query_initializer": "ones",
            "seed": 1,
        },
        returns_scores=True,
        carries_mask=False,
        id="AttentionPooling-queries",
    ),
    Case(
        ka.FeedForwardAttention,
        {},
        {
            "units": 5,
            "activation": "gelu",
            "normalization": "sigmoid",
            "dropout": 0.2,
            "kernel_initializer": "ones",
            "seed": 1,
        },
        returns_scores=True,
        carries_mask=False,
    ),
    Case(ka.ClassToken, {}, {"initializer": "ones"}, mixes_positions=False, before=1),
    Case(
        ka.FeedForward,
        {"intermediate_dim": 16},
        {
            "activation": "gelu",
            "gated": True,
            "dropout": 0.2,
            "output_dim": 5,
            "use_bias": False,
            "kernel_initializer": "he_normal",
            "bias_initializer": "ones",
            "seed": 2,
        },
        mixes_positions=False,
    ),
    Case(
        ka.MixtureOfExperts,
        {"num_experts": 5, "top_k": 2, "intermediate_dim": 6, "gated": True},
        {
            "activation": "silu",
            "use_bias": False,
            "limit": 2.0,
            "offset": 1.0,
            "kernel_initializer": "he_normal",
            "bias_initializer": "ones",
        },
        mixes_positions=False,
    ),
    Case(
        ka.SinCosPositionEmbedding,
        {},
        {"dim": 8, "merge_mode": "concat", "max_wavelength": 100},
        mixes_positions=False,
    ),
    Case(
        ka.SinCosPositionEmbedding,
        {"dim": 5, "merge_mode": "concat"},
        None,
        mixes_positions=False,
        id="SinCosPositionEmbedding-concat",
    ),
    Case(
        ka.LearnedPositionEmbedding,
        {"max_length": 9},
        {"dim": 8, "merge_mode": "concat", **POSITION_TABLE},
        mixes_positions=False,
    ),
    Case(
        ka.LearnedPositionEmbedding,
        {"max_length": 9, "dim": 5, "merge_mode": "none"},
        None,
        mixes_positions=False,
        id="LearnedPositionEmbedding-none",
    ),
    Case(
        ka.ScaledEmbedding,
        {"vocabulary_size": 10, "dim": 6},
        {"mask_zero": True, **POSITION_TABLE},
        ((5, None),),
        mixes_positions=False,
    ),
]
every_case = pytest.mark.parametrize("case", CASES, ids=str)


@every_case
def test_symbolic_shapes_are_the_eager_ones(case):
    conformance.check_symbolic_shapes_are_the_eager_ones(case)


@pytest.mark.parametrize("case", [c for c in CASES if c.other_arguments is not None], ids=str)
def test_every_argument_is_in_the_config(case):
    conformance.check_every_argument_is_in_the_config(case)


@every_case
def test_masks_are_read_carried_and_never_written(case):
    conformance.check_masks_are_read_carried_and_never_written(case)


@pytest.mark.parametrize("case", [c for c in CASES if c.float_inputs], ids=str)
@pytest.mark.parametrize(
    "policy, value", [("float32", np.nan), ("mixed_bfloat16", np.inf), ("mixed_float16", 1e38)]
)
def test_padding_may_hold_anything(case, policy, value):
    conformance.check_padding_may_hold_anything(case, policy, value)


@every_case
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision(case, policy):
    conformance.check_mixed_precision(case, policy)


@every_case
@pytest.mark.parametrize("jit_compile", JIT_MODES)
def test_compiled_is_eager(case, jit_compile):
    conformance.check_compiled_is_eager(case, jit_compile)


@every_case
@pytest.mark.parametrize("jit_compile", SLOW_JIT_MODES)
def test_one_training_step(case, jit_compile):
    conformance.check_one_training_step(case, jit_compile)


@every_case
def test_training_in_float16(case):
    conformance.check_training_in_float16(case)


@every_case
def test_empty_rows(case):
    conformance.check_empty_rows(case)


@every_case
def test_no_rows_and_no_positions(case):
    conformance.check_no_rows_and_no_positions(case)


@pytest.mark.parametrize("case", [c for c in CASES if hasattr(c.layer, "make_cache")], ids=str)
def test_pieces_are_the_whole(case):
    conformance.check_pieces_are_the_whole(case)


# A cell is no layer of sequences, a recurrent layer has a memory, and a loss takes rewards:
# test_attention_cell, test_attention_rnn and test_hard_attention check them.
OTHERS = {"AttentionCell", "AttentionRNN", "ReinforceLoss"}


def test_every_public_layer_has_a_case():
    public = {
        value
        for value in map(ka.__dict__.get, ka.__all__)
        if isinstance(value, type)
        and issubclass(value, keras.layers.Layer)
        and value.__name__ not in OTHERS
    }
    assert public == {case.layer for case in CASES}
    assert public == {case.layer for case in CASES if case.other_arguments is not None}


LOADER = """
import pathlib, sys
import keras_attention
import keras, numpy as np
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.keras")):
    model = keras.saving.load_model(path)
    saved = np.load(path.with_suffix(".npz"))
    inputs = [saved[f"input_{i}"] for i in range(len(model.inputs))]
    outputs = model(inputs if len(inputs) > 1 else inputs[0])
    outputs = keras.tree.flatten(outputs)
    for i, output in enumerate(outputs):
        output = keras.ops.convert_to_numpy(output)
        np.testing.assert_allclose(output, saved[f"output_{i}"], rtol=1e-5, atol=1e-6)
    print("loaded", path.name)
"""


def test_saved_models_load_in_a_fresh_process(tmp_path):
    names = []
    for index, case in enumerate(CASES):
        if isinstance(case.arguments.get("position"), Nearer):
            continue  # The class is this file's own, which the other process does not import.
        model, arrays = case.model(scores=case.returns_scores), case.arrays()
        rng = np.random.default_rng(5)
        model.set_weights([rng.normal(size=weight.shape) for weight in model.weights])
        outputs = outputs_of(model(conformance.alone(arrays)))
        path = tmp_path / f"{index:02}-{case}.keras"
        model.save(path)
        np.savez(
            path.with_suffix(".npz"),
            **{f"input_{i}": array for i, array in enumerate(arrays)},
            **{f"output_{i}": numpy(output) for i, output in enumerate(outputs)},
        )
        names.append(path.name)
    process = subprocess.run(
        [sys.executable, "-c", LOADER, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr[-3000:]
    assert process.stdout.split("\n")[:-1] == [f"loaded {name}" for name in names]
