"""The programs by name: what is compiled, and which of Keras's it is compared with."""

import keras

import keras_attention as ka
from benchmarks.gpu_programs.cases import Case, Row
from benchmarks.gpu_programs.steps import layer_step

WINDOW = 128


def _keras_layer(case, **options):
    return keras.layers.MultiHeadAttention(case.heads, case.features // case.heads, **options)


def _keras_grouped(case):
    return keras.layers.GroupQueryAttention(case.features // case.heads, case.heads, 2)


def _keras_call(**options):
    def call(layer, x, real):
        return layer(x, x, query_mask=real, value_mask=real, **options)

    return call


def _our_call(layer, x, real):
    return layer(x, query_mask=real)


def _layer_row(name, case, make, call, **about):
    def compile():
        return layer_step(make(case), case, call)

    return Row(name, compile, copies_of=case.elements, **about)


# Options of ours, those of the case, whose row of Keras's is compared, and whether it is fused.
def _ours(case, **options):
    return ka.MultiHeadAttention(case.heads, case.features // case.heads, **options)


OPTIONS = {
    "plain": ({}, False, "plain", True),
    "padding": ({}, True, "padding", True),
    "causal": ({"pattern": "causal"}, False, "causal", True),
    "causal, padding": ({"pattern": "causal"}, True, "causal, padding", True),
    "grouped": ({"num_key_value_heads": 2, "pattern": "causal"}, False, "grouped", True),
    "rotary": ({"position": "rotary"}, False, "plain", True),
    "causal, rotary, grouped, padding": (
        {"pattern": "causal", "position": "rotary", "num_key_value_heads": 2},
        True,
        "grouped, padding",
        True,
    ),
    "window": ({"pattern": ka.patterns.SlidingWindow(WINDOW - 1, 0)}, False, "window", True),
    "window, padding": (
        {"pattern": ka.patterns.SlidingWindow(WINDOW - 1, 0)},
        True,
        "window, padding",
        False,
    ),
    "window on both sides": ({"sliding_window": WINDOW}, False, "window", False),
    "ALiBi": ({"position": "alibi", "pattern": "causal"}, False, "causal", False),
    "Shaw": ({"position": ka.positions.Shaw(16)}, False, "plain", False),
    "dropout": ({"dropout": 0.1}, False, "dropout", False),
    "causal, dropout, padding": (
        {"dropout": 0.1, "pattern": "causal"},
        True,
        "causal, dropout, padding",
        False,
    ),
}
# Keras's layers, by the same names.
THEIRS = {
    "plain": (_keras_layer, {}, False),
    "padding": (_keras_layer, {}, True),
    "causal": (_keras_layer, {"use_causal_mask": True}, False),
    "causal, padding": (_keras_layer, {"use_causal_mask": True}, True),
    "grouped": (_keras_grouped, {"use_causal_mask": True}, False),
    "grouped, padding": (_keras_grouped, {"use_causal_mask": True}, True),
    "window": (lambda case: _keras_layer(case, sliding_window=WINDOW), {}, False),
    "window, padding": (lambda case: _keras_layer(case, sliding_window=WINDOW), {}, True),
    "dropout": (lambda case: _keras_layer(case, dropout=0.1), {}, False),
    "causal, dropout, padding": (
        lambda case: _keras_layer(case, dropout=0.1),
        {"use_causal_mask": True},
        True,
    ),
}


def layer_rows():
    for training in (True, False):
        step = "training" if training else "forward"
        for name, (make, options, padding) in THEIRS.items():
            case = Case(padding=padding, training=training)
            yield _layer_row(f"Keras, {name}, {step}", case, make, _keras_call(**options))
        for name, (options, padding, other, fused) in OPTIONS.items():
            case = Case(padding=padding, training=training)
            yield _layer_row(
                f"{name}, {step}",
                case,
                lambda case, options=options: _ours(case, **options),
                _our_call,
                other=f"Keras, {other}, {step}",
                fused=fused,
                goals=training,
            )
    for name in ("padding", "causal, rotary, grouped, padding", "window", "dropout"):
        options, padding, _, fused = OPTIONS[name]
        case = Case(length=32768, padding=padding)
        yield _layer_row(
            f"{name}, T32768, training",
            case,
            lambda case, options=options: _ours(case, **options),
            _our_call,
            fused=fused,
        )


def rows():
    """All rows, by name; those that others are compared with come first."""
    from benchmarks.gpu_programs import models

    return {row.name: row for row in (*layer_rows(), *models.rows())}
