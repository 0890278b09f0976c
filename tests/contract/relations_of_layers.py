"""What holds for every layer, of sequences or not: symbols, files, gradients, dtypes, weights."""

import inspect
import json
import pathlib
import re
import tempfile

import keras
import numpy as np

import keras_attention as ka
from keras_attention.core import parts
from keras_attention.inspection import attention_gradients
from keras_attention.sequences import masks
from keras_attention.visualization import collect_attention
from tests.arrays import numpy
from tests.compiled import Program
from tests.contract import places, registry, relations, rows
from tests.contract.registry import B, D, N, S, T
from tests.contract.relations import ATTENTION, Relation, agree, close, of_tokens
from tests.gradients import weight_gradients

ops = keras.ops
BACKEND = keras.backend.backend()
standard = keras.backend.standardize_dtype


# Symbols


def symbols_are_arrays(subject):
    """R4: shapes and dtypes."""
    x = rows.batch(subject.entry.ids, garbage=False)
    sizes = [(B, T)]
    if not subject.adapted:
        sizes += [(None, T)] + [(None, None)] * (not subject.entry.traits.cells)
    for given in [{}] + [{"return_attention_scores": True}] * subject.returns_scores:
        arrays = keras.tree.flatten(subject.program.traced(x, **subject.always, **given))
        for batch, length in sizes:
            symbols = subject.symbolic(batch, length, **given)
            assert len(symbols) == len(arrays)
            for symbol, array in zip(symbols, arrays, strict=True):
                assert standard(symbol.dtype) == standard(array.dtype)
                assert len(symbol.shape) == len(array.shape)
                for size, known in zip(array.shape, symbol.shape, strict=True):
                    assert known == size or (known is None and None in (batch, length))
    if subject.entry.mechanism and subject.place == "alone":
        # Before there are weights, too.
        shape = subject.symbolic(positions="tokens")[0].shape
        other = subject.entry.make()
        symbol = keras.KerasTensor((B, T, D))
        assert other.compute_output_spec(symbol, positions="tokens").shape == shape


def nothing_has_the_shape_of_symbols(subject):
    """R4: batches of no rows, and sequences of no tokens."""
    x = rows.batch(subject.entry.ids, garbage=False)
    for few in (x[:0], x[:, :0])[: 1 if subject.entry.traits.cells else 2]:
        arrays = subject.call(few)
        for array, symbol in zip(arrays, subject.symbolic(*few.shape[:2]), strict=True):
            assert array.shape == tuple(symbol.shape)
            assert np.isfinite(array).all()
        assert np.isfinite([numpy(loss) for loss in subject.program.losses]).all()


def integers_are_floats(subject):
    """R4: counts, pixels and flags, of arrays and of symbols."""
    for dtype in ("int32",) if BACKEND == "jax" else ("int32", "bool"):
        x = np.rint(2 * rows.batch(garbage=False)).astype(dtype)
        found, expected = (subject.run(x, rows.MASK) for x in (x, x.astype("float32")))
        for one, other in zip(*map(keras.tree.flatten, (found, expected)), strict=True):
            assert standard(one.dtype) == standard(other.dtype)
            close(numpy(one), numpy(other))
        for one, other in zip(subject.symbolic(dtype=dtype), subject.symbolic(), strict=True):
            assert standard(one.dtype) == standard(other.dtype)


def refusals_are_the_same(subject):
    """R4: what arrays are refused, symbols are, and the other way around."""
    x = rows.batch(subject.entry.ids, garbage=False)
    queries = S if subject.place == "context" else T
    pairs = [(queries, T), (B, 1, queries, T), (B, queries, T), (1, 1, 1, T), (T + 2, T + 2)]
    pairs += [(2, queries, T), (B, 3, queries, T), (B + 1, 1, 1, 1), (T,), (B, T, 1, 1)]
    given = [("attention_mask", np.ones(shape, bool)) for shape in pairs]
    given += [("attention_bias", np.zeros(shape, "float32")) for shape in pairs]
    given += [
        (subject.mask_name, np.ones(s, bool)) for s in ((B, T), (1, T), (B, 17), (9, T), (B,))
    ]
    for shape in ((T,), (B, T), (17,), (B, 17), (9, T)):
        given += [("positions", np.zeros(shape, "int32"))]
    for shape in ((B, T), (B, 17), (9, T)):
        given += [("segment_ids", np.zeros(shape, "int32"))]
    given += [("positions", word) for word in ("tokens", "places", "other")]
    if subject.entry.mechanism and subject.place == "alone":
        given += [("value", np.zeros(shape, "float32")) for shape in ((B, 17, D), (9, T, D))]
    given += [("return_attention_scores", True), ("use_causal_mask", True)]
    names = inspect.signature(subject.layer.call).parameters
    unlike = []
    for name, value in given:
        if name in names:
            # Padding beside what is of pairs.
            mask = None if name == subject.mask_name else rows.MASK
            arrays, symbols = (_refuses(subject, at, mask, name, value) for at in (x, None))
            others = {17, 9} & set(np.shape(value)) or np.shape(value) == (B,)
            others = others and not (name == "value" and subject.entry.traits.crosses)
            if bool(arrays) != bool(symbols) or (others and not arrays):
                unlike.append((name, np.shape(value) or value, arrays, symbols))
    assert not unlike, unlike


def _refuses(subject, x, mask, name, value):
    try:
        if x is None:
            subject.symbolic(**{name: value})
        else:
            subject.program.traced(x, mask, **{**subject.always, name: value})
    except (ValueError, TypeError) as error:
        return str(error)[:200]
    return None


# Files, all in one folder, so that another process loads all at once

FOLDER = pathlib.Path(tempfile.mkdtemp())


def saved_is_equal(subject):
    """R5: configurations, `.keras`, `.weights.h5` and `.h5`; parts of the layer are frozen."""
    model, x = subject.model()
    expected = _arrays(_program(model)(x))
    config = json.loads(json.dumps(subject.layer.get_config()))
    again = type(subject.layer).from_config(config)
    assert json.loads(json.dumps(again.get_config())) == config
    named = subject.entry.make(name="given", dtype="mixed_bfloat16", trainable=False)
    again = type(named).from_config(named.get_config())
    assert (again.name, again.dtype_policy.name) == ("given", "mixed_bfloat16")
    assert not again.trainable
    frozen = [part for _, part in parts.inside(subject.layer) if part.trainable_weights][1::2]
    try:
        for part in frozen:
            part.trainable = False
        _saved_in_files(subject, model, x, expected)
    finally:
        for part in frozen:
            part.trainable = True


def _saved_in_files(subject, model, x, expected):
    path = FOLDER / f"{subject.entry}-{subject.place}"
    model.save(f"{path}.keras")
    model.save_weights(f"{path}.weights.h5")
    inputs = [numpy(x) for x in keras.tree.flatten(x)]
    np.savez(f"{path}.npz", *inputs, expected[0])
    loaded = keras.saving.load_model(f"{path}.keras")
    # Keras numbers what has no name.
    paths = [[re.sub(r"_\d+", "", w.path) for w in m.weights] for m in (loaded, model)]
    assert paths[0] == paths[1]
    trained = [[w.trainable for w in m.weights] for m in (loaded, model)]
    assert trained[0] == trained[1]
    program = _program(loaded)
    _close(program(x), expected)
    for variable in loaded.trainable_variables:
        variable.assign(0 * variable)
    loaded.load_weights(f"{path}.weights.h5")
    _close(program(x), expected)
    # The legacy format has functional models alone.
    if subject.place == "alone" and model is not subject.layer:
        # Its files have what is trained before what is not.
        model.save(f"{path}.h5")
        loaded = keras.saving.load_model(f"{path}.h5", compile=False)
        assert [w.trainable for w in loaded.weights] == trained[1]
        _close(_program(loaded)(x), expected)


def _program(layer):
    return Program(lambda x: layer(x), layer)


def _close(outputs, expected):
    for found, other in zip(_arrays(outputs), expected, strict=True):
        close(found, other, 1e-6)


def _arrays(outputs):
    return [numpy(x) for x in keras.tree.flatten(outputs)]


# Gradients


def gradients_are_slopes(subject):
    """R6: finite, zero into padding, nonzero into weights, and those of finite differences.

    The last are of layers: what is around them has no gradients of its own.
    """
    ids = subject.entry.ids
    x = rows.batch(ids)
    expected = subject.dirty()[0]
    upstream = rows.numbers(*expected.shape, seed=3)
    flag = np.ones(expected.shape, bool)
    if of_tokens(expected):
        mask = rows.MASK.reshape(B, T, *[1] * (expected.ndim - 2))
        flag[:, expected.shape[1] - T :] = mask

    def loss(subject, x=None):
        output = keras.tree.flatten(subject.run(rows.batch(True) if ids else x, rows.MASK))[0]
        output = ops.where(flag, output, ops.zeros_like(output))
        return ops.sum(ops.cast(output, standard(output.dtype)) * ops.cast(upstream, output.dtype))

    arrays = [] if ids else [x]
    of_weights, of_inputs = weight_gradients(subject.layer, lambda *x: loss(subject, *x), arrays)
    for array in (*of_weights, *of_inputs):
        assert np.isfinite(array).all()
    for array in of_inputs:
        assert not array[~rows.MASK].any()
    if subject.entry.name in registry.STEPS:
        return
    paths = [variable.path for variable in subject.layer.trainable_variables]
    flat = [path for path, g in zip(paths, of_weights, strict=True) if np.abs(g).max() < 1e-7]
    unused = registry.WITHOUT_GRADIENT + registry.UNUSED.get(subject.entry.name, ())
    assert not [path for path in flat if not path.endswith(unused)], flat
    if subject.place not in relations.LAYERS:
        return
    # Keras's recurrent cells round float64 on PyTorch.
    wide = BACKEND == "tensorflow" or (BACKEND == "torch" and not recurs(subject))
    if wide:
        subject = subject.of_policy("float64")
        arrays = [x.astype("float64") for x in arrays]
        of_weights, of_inputs = weight_gradients(
            subject.layer, lambda *x: loss(subject, *x), arrays
        )
    # In float32, longer steps cross more edges, and shorter ones are lost in rounding.
    step, tolerance = (1e-7, 1e-5) if wide else (1e-4, 5e-2)
    variables = subject.layer.trainable_variables
    count = len(variables)

    def moved_to(*moved):
        state = list(zip(variables, moved[:count], strict=True))
        with keras.StatelessScope(state_mapping=state):
            return loss(subject, *moved[count:])

    program = Program(moved_to, subject.layer)
    values, gradients = [*map(numpy, variables), *arrays], of_weights + of_inputs
    scale = step * max(1.0, np.sqrt(sum(np.square(g).sum() for g in gradients)))
    rng = np.random.default_rng(4)

    def error():
        """Of the slope in a direction."""
        slope, ends = 0.0, ([], [])
        for value, gradient in zip(values, gradients, strict=True):
            direction = step * rng.normal(size=value.shape)
            both = [(value + sign * direction).astype(value.dtype) for sign in (1, -1)]
            # By how much it moved in its own dtype.
            with np.errstate(invalid="ignore"):
                moved = np.nan_to_num(both[0].astype("float64") - both[1], posinf=0, neginf=0)
            slope += (moved * gradient).sum()
            for end, array in zip(ends, both, strict=True):
                # Without a dtype, Keras rounds a number of float64 on PyTorch.
                end.append(ops.convert_to_tensor(array, str(array.dtype)))
        found = [float(numpy(program(*end))) for end in ends]
        return abs(found[0] - found[1] - slope) / scale

    # Windows, choices and rectified units have edges, and one direction may cross one.
    errors = [error() for _ in range(3)]
    assert np.median(errors) < tolerance, errors


# Dtypes


def recurs(subject):
    return subject.place == "cell" or subject.entry.cls in registry.RECURRENT


TOLERANCE = {"mixed_float16": 0.02, "mixed_bfloat16": 0.1, "bfloat16": 0.2, "float64": 1e-5}


def dtypes_agree(subject):
    """R7: policies compute the same but for rounding, in the dtype that symbols have."""
    x, expected = rows.batch(subject.entry.ids, garbage=False), subject.zeros()[0]
    for policy, tolerance in TOLERANCE.items():
        if subject.place not in relations.LAYERS and policy in ("mixed_bfloat16", "bfloat16"):
            continue  # A cell or a stack casts to the one half precision as to the other.
        # Keras draws recurrent kernels in the dtype of the weights, which PyTorch cannot.
        if BACKEND == "jax" and policy != "mixed_bfloat16":
            continue
        if policy == "bfloat16" and recurs(subject):
            continue
        other = subject.of_policy(policy)
        dtypes = []

        def scaled(upstream, x=x, other=other, dtypes=dtypes):
            output = keras.tree.flatten(other.run(x, rows.MASK))[0]
            dtypes.append(standard(output.dtype))
            return ops.cast(output, upstream.dtype) * upstream

        upstream = np.full(expected.shape, 2.0**10 / expected.size, "float32")
        if policy == "mixed_float16" and subject.place in relations.LAYERS:
            # By a loss that is scaled as Keras's optimizers do, of which the output is a gradient.
            arrays = [upstream] if subject.entry.ids else [upstream, x]
            of_weights, (found, *of_x) = weight_gradients(other.layer, scaled, arrays)
            assert all(np.isfinite(gradient).all() for gradient in (*of_weights, *of_x))
        else:
            found = numpy(scaled(ops.ones(expected.shape)))
        assert dtypes[0] == standard(other.symbolic()[0].dtype)
        if subject.entry.name not in registry.STEPS | {"MixtureOfExperts"}:
            agree(found.astype(expected.dtype), expected, tolerance)


# Weights of pairs


def weights_are_one_thing(subject):
    """R8: returned, collected, and those whose gradients are asked for."""
    layer, ids = subject.layer, subject.entry.ids
    x = masks.carry(*map(ops.convert_to_tensor, (rows.batch(ids), rows.MASK)))
    text = ops.convert_to_tensor(rows.text(ids))
    found = [_weights(layer, x), _weights(layer, text)]
    if subject.returns_scores:
        output, scores = subject.dirty(return_attention_scores=True)[:2]
        agree(output, subject.dirty()[0])
        close(found[0][0][0], scores)
    for in_rows, alone in zip(*found, strict=True):
        assert len(in_rows) == len(alone) > 0
        for weights, other in zip(in_rows, alone, strict=True):
            keys = np.broadcast_to(rows.MASK[:, None, None], weights.shape)
            assert not weights[~keys].any()
            for row in rows.TEXTS if subject.reference == subject.alone else ():
                inner = weights[row][..., rows.MASK[row]]
                inner = inner[:, rows.MASK[row]] if weights.shape[2] == T else inner
                close(inner, other[rows.OF_SIDE[row]])
    values = [v for v in layer.trainable_variables if "value" in v.path]
    # Outputs are linear in weights: these together are the output without values.
    if subject.place == "alone" and subject.entry.name in LINEAR and values:
        totals = []
        for state in ([], [(v, ops.zeros(v.shape, v.dtype)) for v in values]):
            with keras.StatelessScope(state_mapping=state):
                totals.append(numpy(_total(subject.run(rows.batch(), rows.MASK))))
        close(found[0][1][0].sum((1, 2, 3)), totals[0] - totals[1], 1e-4)


# But for heads that are normalized.
LINEAR = set(registry.MECHANISMS) - {"DifferentialAttention"}


def _weights(layer, x):
    found = collect_attention(layer, x), attention_gradients(layer, x, target=_total)
    return [list(arrays.values()) for arrays in found]


def _total(output):
    """The sum of each row, of what is a number."""
    output = ops.where(ops.isfinite(output), output, 0.0)
    return ops.sum(ops.reshape(output, (output.shape[0], -1)), axis=1)


# Places that change nothing


def a_model_is_the_layer(subject):
    """In a functional model, and in `TimeDistributed`."""
    x, mask = rows.batch(subject.entry.ids), rows.MASK
    tensors = list(map(ops.convert_to_tensor, (x, mask)))
    agree(_arrays(_program(subject.model(masked=True))(tensors))[0], subject.dirty()[0])
    tensors = [ops.convert_to_tensor(np.stack([array, array[::-1]], axis=1)) for array in (x, mask)]
    twice = keras.layers.TimeDistributed(subject.layer)
    found = _arrays(_program(twice)(masks.carry(*tensors)))[0]
    agree(found[:, 0], subject.dirty()[0])
    agree(found[::-1, 1], subject.dirty()[0])


def a_program_is_the_call(subject):
    """Compiled as a whole, lengths being known; on JAX, all others are: not compiled."""

    def run(x, mask):
        return keras.tree.flatten(subject.eager(x, mask, **subject.always))[0]

    if BACKEND == "tensorflow":
        import tensorflow as tf

        run = tf.function(run, autograph=False, jit_compile=True)
    tensors = map(ops.convert_to_tensor, (rows.batch(subject.entry.ids), rows.MASK))
    agree(numpy(run(*tensors)), subject.dirty()[0])


# Packed texts


def packed_texts_are_alone(subject):
    """R9: texts after one another in a row, counted each from its first token.

    One token of the other text is padding.
    """
    ids = subject.entry.ids
    text, rest = rows.text(ids)[:1], rows.numbers(1, T - N, D, ids=ids, seed=6)
    one, two = (np.concatenate(pair, axis=1) for pair in ((text, rest), (rest, text)))
    x = np.concatenate([one, two] * (B // 2))
    segments = np.array([[3] * N + [1] * (T - N), [0] * (T - N) + [2] * N] * (B // 2), "int32")
    places = np.array([[*range(N), *range(T - N)], [*range(T - N), *range(N)]] * (B // 2), "int32")
    mask = np.ones((B, T), bool)
    mask[::2, N + 1] = mask[1::2, 1] = False
    x[~mask] = 5 if ids else np.nan
    for given in [places] + ["tokens"] * (not subject.entry.traits.cells):
        found = subject.call(x, mask, segment_ids=segments, positions=given)[0]
        for row in range(B):
            close(found[row, :N] if row % 2 == 0 else found[row, T - N :], subject.alone()[0][0])


def in_model(entry, place):
    return entry.call is not registry.of_cell and entry.name != "AttentionCell"


def may_count(entry, place):
    """Whether what it is called with may be integers: no logits, nor their probabilities."""
    logits = issubclass(entry.cls, (ka.PointerGenerator, ka.ReinforceLoss))
    return not (entry.ids or logits) and in_model(entry, place)


def has_weights(entry, place):
    """Those of `SlotAttention` that are collected are of its means, and others than it returns."""
    # On JAX each operation that collects them is compiled, of all slots the same.
    few = BACKEND == "jax" and entry.of_slot
    return entry.traits.scores and entry.cls is not ka.SlotAttention and not few


RELATIONS = {
    "symbols": Relation(symbols_are_arrays, places.PLACES, in_model),
    "nothing": Relation(nothing_has_the_shape_of_symbols, (*ATTENTION, "context"), in_model),
    "integers": Relation(integers_are_floats, ATTENTION, may_count),
    "refusals": Relation(refusals_are_the_same, ATTENTION, in_model),
    "saved": Relation(saved_is_equal, ("alone", "stack"), in_model),
    "gradients": Relation(gradients_are_slopes, places.PLACES),
    "dtypes": Relation(dtypes_agree, places.PLACES),
    "weights": Relation(weights_are_one_thing, ATTENTION, has_weights),
    "model": Relation(a_model_is_the_layer, when=lambda e, place: e.call is None),
    # On PyTorch, compiling takes most of a minute a layer.
    "program": Relation(a_program_is_the_call, when=lambda e, place: BACKEND != "torch"),
    "packed": Relation(
        packed_texts_are_alone,
        ATTENTION,
        lambda e, place: (
            e.traits.positions and e.traits.segment_ids and e.name != "LocalAttention-predictive"
        ),
    ),
}
