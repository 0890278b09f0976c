"""Every argument of every public constructor: in the signature, and refused where it is wrong."""

import json
import typing

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention import (
    alignments,
    feature_maps,
    losses,
    normalizations,
    patterns,
    positions,
    regularizers,
    saving,
    schedules,
    scores,
)
from keras_attention.layers.base import BaseAttention
from tests.contract import registry
from tests.signatures import signature

# What classes cannot be made without, where it is not what the registry of relations has.
NEEDED = {
    ka.AttentionCell: {"cell": lambda: keras.layers.SimpleRNNCell(4), "attention": "dot"},
    ka.MixtureOfExperts: {"intermediate_dim": 4},
    patterns.And: {"patterns": [patterns.Causal()]},
    patterns.Axial: {"grid": (4, 4, 4)},
    patterns.GridWindow: {"grid": (8, 8), "size": 5},
    patterns.Neighborhood: {"grid": (9, 9), "size": 3},
    patterns.Not: {"pattern": patterns.Causal()},
    patterns.Or: {"patterns": [patterns.Causal()]},
    patterns.RandomBlocks: {"length": 40, "size": 1, "count": 2},
    patterns.BigBird: {"length": 40, "size": 1, "count": 2},
    schedules.InverseSquareRoot: {"dim": 4, "warmup_steps": 4},
}
# What a value needs beside it: heads need projections, and so on.
BESIDE = {
    "self_attention": {"cross_attention": True},
    "query_residual": {"cross_attention": True},
    "input_feeding": {"mode": "luong"},
    "use_bias": {"num_heads": 2, "key_dim": 4},
    "value_dim": {"num_heads": 2, "key_dim": 4},
    "num_heads": {"num_heads": 2, "key_dim": 4},
    "num_key_value_heads": {"num_heads": 4, "key_dim": 4},
    "num_key_heads": {"num_heads": 4, "key_dim": 4},
    "max_distance": {"num_buckets": 8},
    "num_groups": {"num_experts": 8, "top_groups": 1, "top_k": 2},
    "top_groups": {"num_experts": 16, "num_groups": 4},
    "factor": {"scaling": "linear"},
    "limit": {"gated": True},
    "use_shared_gate": {"shared_dim": 4},
    "offset": {"gated": True},
    "decays": {"num_heads": 1, "key_dim": 4},
    "short_factors": {"scaling": "longrope", "original_max_length": 4, "long_factors": [1.0]},
    "long_factors": {"scaling": "longrope", "original_max_length": 4, "short_factors": [1.0]},
}

NAN, INFINITY = float("nan"), float("inf")
NOT_NUMBERS = ["no", b"3", [1], {"a": 1}, object(), True, NAN, INFINITY, np.ones(2)]
# Of each kind: values that must be refused, and the same value as Python and as NumPy have it.
KINDS = {
    "count": (
        [*NOT_NUMBERS, 0, -1, 2**30, 10**30, 2.0, np.float32(2), np.array(2), np.int64(-1)],
        4,
        np.int32(4),
    ),
    "size": ([*NOT_NUMBERS, -1, 2.0, np.array(2)], 4, np.int64(4)),
    "integer": (
        ["no", b"3", [1], {"a": 1}, object(), True, NAN, 2.0, np.float32(2), np.array(2)],
        -3,
        np.int64(-3),
    ),
    "sizes": (
        ["no", b"3", {"a": 1}, object(), True, NAN, 2.0, [1.0], (True,), (), ["a"], np.ones(2)],
        (3, 2),
        (np.int64(3), 2),
    ),
    "alpha": ([*NOT_NUMBERS, 0.0, 1.0, 2.5], 1.75, np.float32(1.75)),
    "rate": ([*NOT_NUMBERS, -0.1, 1, 1.5, None], 0.5, np.float32(0.5)),
    "positive": ([*NOT_NUMBERS, 0, -1.0, -INFINITY], 2.5, np.float32(2.5)),
    "not negative": ([*NOT_NUMBERS, -1.0, -INFINITY], 2.5, np.float32(2.5)),
    "number": ([*NOT_NUMBERS, -INFINITY], -2.5, np.float32(-2.5)),
    "flag": (["no", "", 0, 1, 1.0, [True], NAN, object(), np.ones(2)], True, np.bool_(True)),
    "name": (["no", "", 0, 1, True, NAN, [1], object(), np.ones(2)], None, None),
    "Keras's": (["no", "", 1, True, NAN, object()], None, None),
    "object": ([1, True, NAN, [1], object(), "no"], None, None),
    "factors": (["no", 1.0, [0.0], [-1.0], ["a"], [NAN], object(), True], [1.0], [np.float32(1)]),
    "axes": (["no", 0, [2], [-1], ["a"], [0.5], np.ones(2)], [0, 1], [np.int64(0), 1]),
    "terms": (["c2p", ["no"], [], ["c2p", "c2p"], [["c2p"]], 1, object()], ["c2p"], None),
    "anything": ([], {}, {}),
    "sources": ([0, "no", NAN, object(), np.ones(2), [None], [None, 0]], [None, None], None),
}
KIND = {
    "count": "num_heads num_key_value_heads key_dim value_dim units rank max_length window "
    "sliding_window neighbors rate intermediate_dim output_dim num_queries vocabulary_size dim "
    "max_distance num_buckets original_max_length length size attention_dim warmup_steps "
    "num_experts top_k rope_dim latent_dim query_latent_dim depth num_groups top_groups "
    "shared_dim count k max_position num_inducing_points decay_rank num_landmarks num_tokens "
    "num_iterations conv_kernel_size filters kernel_size chunk_size num_slots "
    "num_features num_global max_global num_key_heads trained_size dilation redraw_every "
    "block_size stride selected_size num_selected num_near distance since",
    "size": "left right prefix shift num_extra_tokens reach ends",
    "integer": "seed ignore_class axis",
    "sizes": "output_shape attention_axes grid patch_size",
    "alpha": "alpha",
    "rate": "dropout momentum label_smoothing",
    "positive": "temperature logit_soft_cap max_bias max_wavelength factor beta_fast beta_slow "
    "clip_qkv attention_factor layer_norm_epsilon target epsilon soft_cap limit "
    "norm_epsilon threshold scale_base gamma decay_temperature width max_rate max_scale",
    "not negative": "noise",
    "number": "entropy_factor scale offset value initial_bias",
    "flag": "use_bias use_sink use_gate use_values per_head bidirectional truncate causal gated "
    "normalize normalize_first cross_attention input_feeding output_context mask_zero "
    "return_attention_scores flash_attention return_sequences return_state go_backwards unroll "
    "zero_output_for_mask tied normalize_weights flatten use_correction_bias use_decay "
    "self_attention together use_shared_gate wide_output wide_residual query_residual norm_after "
    "decomposed diagonal normalized own_projections",
    "axes": "axes",
    "terms": "terms",
    "name": "variant mode gradient merge_mode layout scaling norm qk_norm residual interpolation "
    "data_format scoring head_norm sharing reuse history initial pooling gate_activation "
    "initial_scale value_norm",
    "factors": "short_factors long_factors decays",
    "Keras's": "reduction activation attention_activation initializer kernel_initializer "
    "bias_initializer query_initializer center_initializer embeddings_initializer "
    "kernel_regularizer bias_regularizer activity_regularizer embeddings_regularizer "
    "kernel_constraint bias_constraint embeddings_constraint",
    "object": "score normalization pattern position scores_regularizer cell attention patterns "
    "feed_forward blocks embeddings final_norm logits encoder decoder tokens positions types "
    "projection token_projection transform feature_map alignment chunk_score",
    "anything": "metadata",
    "sources": "sources",
}
KIND = {name: kind for kind, names in KIND.items() for name in names.split()}
# Where one name is of two kinds.
KIND_OF = {
    **dict.fromkeys([(patterns.RandomBlocks, "seed"), (patterns.BigBird, "seed")], "size"),
    (ka.LearnedGridEmbedding, "size"): "sizes",
    (ka.PatchMerging, "size"): "sizes",
    (regularizers.Entropy, "factor"): "number",
    (schedules.InverseSquareRoot, "scale"): "positive",
    (ka.ScaledEmbedding, "scale"): "positive",
    (ka.Logits, "scale"): "positive",
    (positions.FIRE, "scale"): "positive",
    (ka.GatedDeltaNet, "epsilon"): "not negative",
}
# Values that others of the arguments bound, as Python and as NumPy have them.
BOUNDED = {
    "value_dim": (6, np.int32(6)),
    "max_distance": (100, np.int64(100)),
    "num_buckets": (100, np.int64(100)),
    "beta_fast": (100, np.int64(100)),
    "max_rate": (2.0, np.float32(2)),
    "block_size": (64, np.int32(64)),
    "stride": (8, np.int32(8)),
    "selected_size": (128, np.int32(128)),
    (patterns.BigBird, "length"): (50, np.int64(50)),
    (patterns.Neighborhood, "size"): (4, np.int32(4)),
    (patterns.Neighborhood, "dilation"): (2, np.int32(2)),
    (patterns.GridWindow, "grid"): ((9, 7), (np.int64(9), 7)),
    (patterns.Neighborhood, "grid"): ((9, 7), (np.int64(9), 7)),
}
# It has no scaling "longrope".
REFUSED = {(positions.AxialRotary, "short_factors"), (positions.AxialRotary, "long_factors")}
# Values of arguments with such names.
KERAS = {
    "initializer": "ones",
    "regularizer": keras.regularizers.L2(0.01),
    "constraint": keras.constraints.NonNeg(),
    "activation": "gelu",
}
# Names Keras gives to what it makes, of any string.
NAMES = ["name"]


def public_classes():
    modules = (ka, alignments, losses, normalizations, patterns, positions, regularizers)
    modules += (schedules, scores, feature_maps)
    found = [getattr(module, name) for module in modules for name in module.__all__]
    # `Span` and `Groups` are what a pattern answers, and the bases make nothing.
    bases = {patterns.Pattern, patterns.Span, patterns.Groups, positions.Position, scores.Score}
    bases |= {alignments.Alignment, normalizations.Normalization, regularizers.Regularizer}
    return [cls for cls in found if isinstance(cls, type) and cls not in bases]


def own_arguments(cls):
    parameters = signature(cls).parameters.values()
    return [p.name for p in parameters if p.kind is not p.VAR_KEYWORD and p.name not in NAMES]


every_class = pytest.mark.parametrize("cls", public_classes(), ids=lambda cls: cls.__name__)


def needed(cls):
    given = {**registry.ARGUMENTS, **registry.GIVEN.get(cls, {}), **NEEDED.get(cls, {})}
    parameters = signature(cls).parameters.values()
    names = [p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    return {name: registry.fresh(given[name]) for name in names}


def make(cls, name=None, value=None):
    arguments = needed(cls)
    if name is not None:
        taken = own_arguments(cls)
        arguments |= {n: v for n, v in BESIDE.get(name, {}).items() if n in taken}
        arguments[name] = value
    return cls(**arguments)


@every_class
def test_no_argument_is_hidden(cls):
    shown = set(own_arguments(cls))
    held = set(make(cls).get_config()) - {"name", "trainable", "dtype"}
    assert held == shown
    assert set(saving.constructor_arguments(cls, stop=saving.ConfigurableLayer)) - {"name"} == shown
    for parameter in signature(cls).parameters.values():
        assert parameter.kind is not parameter.VAR_POSITIONAL


@every_class
def test_an_argument_that_is_none_is_refused(cls):
    with pytest.raises((TypeError, ValueError), match=r"no_such_argument|takes no arguments"):
        cls(**needed(cls), no_such_argument=1)


@every_class
def test_a_wrong_value_is_refused_by_name(cls):
    """Of what a preset passes on to its base, one value shows that it does."""
    passed_on = set()
    base = ka.Attention if issubclass(cls, ka.Attention) else BaseAttention
    if issubclass(cls, base) and cls is not base:
        between = cls.__mro__[: cls.__mro__.index(base)]
        inits = [vars(one)["__init__"].__code__ for one in between if "__init__" in vars(one)]
        passed_on = set(own_arguments(base)).difference(*(x.co_varnames for x in inits))
    for number, name in enumerate(own_arguments(cls)):
        values = KINDS[KIND_OF.get((cls, name), KIND[name])][0]
        for value in values[number % len(values) :][:1] if name in passed_on else values:
            with pytest.raises((TypeError, ValueError)) as caught:
                make(cls, name, value)
            message = str(caught.value)
            assert name in message or repr(value) in message or str(value) in message, message
            assert "Received" in message or "Could not interpret" in message, message


def options(hint):
    """What a `Literal` in a hint names."""
    if typing.get_origin(hint) is typing.Literal:
        return [x for x in typing.get_args(hint) if isinstance(x, str)]
    return [x for part in typing.get_args(hint) for x in options(part)]


def others(cls, name):
    """A value other than the default, and the same of NumPy; None where there is none."""
    kind, parameter = KIND[name], signature(cls).parameters[name]
    if kind == "flag":
        return parameter.default is not True, np.bool_(parameter.default is not True)
    if kind == "name":
        return next(
            (x for x in options(parameter.annotation) if x != parameter.default), None
        ), None
    if kind == "Keras's":
        return KERAS.get(name.rpartition("_")[2]), None
    if (cls, name) in BOUNDED:
        return BOUNDED[cls, name]
    return BOUNDED.get(name, KINDS[KIND_OF.get((cls, name), kind)][1:])


def as_json(thing):
    return json.loads(json.dumps(keras.saving.serialize_keras_object(thing)))


@every_class
def test_every_value_is_in_the_config_and_comes_back(cls):
    """That of NumPy is that of Python. Read as Keras does, and as it does in `.h5` files."""
    default = as_json(make(cls))["config"]
    for name in own_arguments(cls):
        value, of_numpy = others(cls, name)
        if value is None or (cls, name) in REFUSED:
            continue
        whole = as_json(make(cls, name, value))
        assert name in needed(cls) or whole["config"][name] != default[name], name
        if of_numpy is not None:
            found = make(cls, name, of_numpy).get_config()[name]
            assert json.dumps(found) == json.dumps(whole["config"][name]), name
        again = keras.saving.deserialize_keras_object(whole)
        assert as_json(again) == whole, name
        if issubclass(cls, keras.layers.Layer):
            check_strings_that_name_functions(cls, whole["config"])


def check_strings_that_name_functions(layer, config):
    """The reader of `.h5` files replaces strings by functions of `keras.layers`, or of others."""
    kind = keras.saving.get_registered_name(layer)
    strings = {
        v
        for n, v in config.items()
        if isinstance(v, str) and not n.endswith(("name", "activation"))
    }
    others = {name: lambda name=name: name for name in strings - set(vars(keras.layers))}
    again = keras.legacy.saving.deserialize_keras_object(
        {"class_name": kind, "config": dict(config)}, vars(keras.layers), {**others, kind: layer}
    )
    assert json.loads(json.dumps(again.get_config())) == config


@pytest.mark.parametrize("slot", registry.SLOTS)
def test_get_takes_a_name_a_slot_or_a_config(slot):
    module, base, _ = registry.SLOTS[slot]
    for name, cls in module.BUILTIN.items():
        if not needed(cls):
            assert type(module.get(name)) is cls and module.get(name) is not module.get(name)
    for made in map(registry.made, registry.public(module, base)):
        assert module.get(made) is made
        again = module.get(keras.saving.serialize_keras_object(made))
        assert type(again) is type(made) and again.get_config() == made.get_config()
