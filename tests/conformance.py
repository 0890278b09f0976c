"""The suite that every layer passes, a `Case` of layers/conformance_cases.py each.

A case names the layer, its inputs, and for every constructor argument a value other than its
default, so that an argument which the configuration forgets cannot hide.
"""

import dataclasses
import inspect
import json

import keras
import numpy as np
import pytest

from keras_attention import LearnedQueries, TransformerBlock, masks, parts
from keras_attention.saving import ConfigurableLayer
from tests.arrays import numpy
from tests.gradients import gradients, weight_gradients

BATCH = 3
KERAS = tuple(map(int, keras.__version__.split(".")[:2]))


@dataclasses.dataclass(frozen=True)
class Case:
    """One way to make a layer, and what to call it with."""

    layer: type
    # Arguments the layer is tested with throughout.
    arguments: dict
    # A value other than the default for every remaining constructor argument; None in the second
    # and later cases of a layer, which need not say it again.
    other_arguments: dict | None
    # One (positions, features) an input; features None for token ids, drawn below `vocabulary`.
    inputs: tuple = ((5, 8),)
    vocabulary: int = 10
    # Whether the inputs are one list, as in `Attention()([query, value])`.
    listed: bool = False
    returns_scores: bool = False
    # Whether positions attend to one another, so that masks matter inside the layer.
    mixes_positions: bool = True
    carries_mask: bool = True
    # Whether tokens can be appended to a cache, where there is a `make_cache`.
    decodes: bool = True
    # Whether sequences may have any number of positions.
    any_length: bool = True
    # Whether it is left to CI, as the marker `ci` of a test.
    ci: bool = False
    # How many positions of the first input become one of the output.
    group: int = 1
    # How many positions the output has before those of the first input.
    before: int = 0
    # What other arguments must be beside a value of one, by its name.
    beside: dict = dataclasses.field(default_factory=dict)
    id: str = ""

    def __str__(self):
        return self.id or self.layer.__name__

    def make(self, **kwargs):
        return self.layer(**{**self.arguments, **kwargs})

    def arrays(self, seed=0):
        """Input arrays, one for each of `inputs`."""
        rng = np.random.default_rng(seed)
        arrays = []
        for positions, features in self.inputs:
            if features is None:
                arrays.append(rng.integers(1, self.vocabulary, (BATCH, positions)).astype("int32"))
            else:
                arrays.append(rng.normal(size=(BATCH, positions, features)).astype("float32"))
        return arrays

    def call(self, layer, arrays, **kwargs):
        return layer(list(arrays), **kwargs) if self.listed else layer(*arrays, **kwargs)

    def symbols(self, batch=None, lengths=True):
        """Symbolic inputs; with `lengths=False` the numbers of positions are unknown."""
        return [
            keras.Input(
                batch_shape=(batch, p if lengths else None) + (() if f is None else (f,)),
                dtype="int32" if f is None else "float32",
            )
            for p, f in self.inputs
        ]

    def model(self, layer=None, scores=False):
        symbols = self.symbols(lengths=False)
        kwargs = {"return_attention_scores": True} if scores else {}
        outputs = self.call(layer or self.make(), symbols, **kwargs)
        return keras.Model(alone(symbols), outputs)

    @property
    def float_inputs(self):
        return all(features is not None for _, features in self.inputs)


def alone(inputs):
    """What a model of these inputs takes: the list, or the only one of it."""
    return inputs if len(inputs) > 1 else inputs[0]


def outputs_of(result):
    return keras.tree.flatten(result)


def check_symbolic_shapes_are_the_eager_ones(case):
    for kwargs in [{}] + [{"return_attention_scores": True}] * case.returns_scores:
        layer = case.make()
        eager = outputs_of(case.call(layer, case.arrays(), **kwargs))
        for batch, lengths in ((BATCH, True), (None, True), (None, False)):
            symbolic = outputs_of(case.call(layer, case.symbols(batch, lengths), **kwargs))
            assert len(symbolic) == len(eager)
            for symbol, array in zip(symbolic, eager, strict=True):
                assert len(symbol.shape) == len(array.shape)
                for known, size in zip(symbol.shape, array.shape, strict=True):
                    assert known is None or known == size, (symbol.shape, array.shape)
                if batch and lengths:
                    assert tuple(symbol.shape) == tuple(array.shape)
                assert keras.backend.standardize_dtype(
                    symbol.dtype
                ) == keras.backend.standardize_dtype(array.dtype)


def check_every_argument_is_in_the_config(case):
    signature = set()
    for owner in case.layer.__mro__:
        if owner is ConfigurableLayer:
            break
        if "__init__" in vars(owner):
            parameters = inspect.signature(owner.__init__).parameters.values()
            kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
            signature |= {p.name for p in parameters if p.kind in kinds}
    signature -= {"self"} | set(getattr(case.layer, "_fixed_arguments", ()))
    given = {**case.arguments, **case.other_arguments}
    assert set(given) == signature, "the case must give a value for every constructor argument"
    assert signature <= set(case.make().get_config())

    defaults = case.make().get_config()
    for name, value in given.items():
        layer = case.layer(**{**case.arguments, **case.beside.get(name, {}), name: value})
        config = json.loads(json.dumps(layer.get_config()))
        if name in case.other_arguments:
            assert config[name] != defaults[name], f"{name}={value!r} is not in the config"
        again = case.layer.from_config(config)
        assert json.loads(json.dumps(again.get_config())) == config
        check_strings_that_name_functions(case.layer, config)
    named = case.make(name="given", dtype="mixed_bfloat16", trainable=False)
    again = case.layer.from_config(named.get_config())
    assert again.name == "given" and not again.trainable
    assert again.dtype_policy.name == "mixed_bfloat16"


def check_strings_that_name_functions(layer, config):
    """The reader of `.h5` files replaces strings by functions of `keras.layers`, or of others."""
    kind = keras.saving.get_registered_name(layer)
    strings = {
        v for n, v in config.items() if isinstance(v, str) and n not in ("name", "activation")
    }
    others = {name: lambda name=name: name for name in strings - set(vars(keras.layers))}
    again = keras.legacy.saving.deserialize_keras_object(
        {"class_name": kind, "config": dict(config)}, vars(keras.layers), {**others, kind: layer}
    )
    assert json.loads(json.dumps(again.get_config())) == config


def check_h5_files(case, path):
    """Saved with a part frozen: the format orders trained weights before the others."""
    layer, symbols = case.make(), case.symbols()
    model = keras.Model(alone(symbols), case.call(layer, symbols))
    made = [weight.trainable for weight in model.weights]
    inner = [part for _, part in parts.named(layer) if part.weights]
    for part in inner[len(inner) // 2 :][:1]:
        part.trainable = False
        assert [weight.trainable for weight in model.weights] != made
    rng = np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(rng.uniform(0.5, 1.0, weight.shape))
    model.save(path)
    again = keras.models.load_model(path, compile=False)
    assert [w.trainable for w in again.weights] == [w.trainable for w in model.weights]
    for ours, other in zip(again.weights, model.weights, strict=True):
        np.testing.assert_array_equal(numpy(ours), numpy(other))


def masked(arrays, kept):
    """Tensors of `arrays` that carry boolean masks `kept`."""
    tensors = [keras.ops.convert_to_tensor(array) for array in arrays]
    flags = [keras.ops.convert_to_tensor(mask) for mask in kept]
    return [masks.carry(t, m) for t, m in zip(tensors, flags, strict=True)], flags


def padding(case):
    """A mask for each input: different lengths in each row, none empty."""
    kept = []
    for index, (positions, _) in enumerate(case.inputs):
        lengths = np.array([positions, positions - 2, 1 + index])
        kept.append(np.arange(positions)[None] < lengths[:, None])
    return kept


def check_masks_are_read_carried_and_never_written(case):
    layer, kept = case.make(), padding(case)
    arrays = case.arrays()
    tensors, flags = masked(arrays, kept)
    output = outputs_of(case.call(layer, tensors))[0]
    for tensor, flag, mask in zip(tensors, flags, kept, strict=True):
        assert masks.implicit(tensor) is flag
        np.testing.assert_array_equal(numpy(flag), mask)
    symbols = case.symbols()
    flags = [keras.Input(symbol.shape[1:2], dtype="bool") for symbol in symbols]
    case.call(layer, [masks.carry(x, flag) for x, flag in zip(symbols, flags, strict=True)])
    assert all(masks.implicit(x) is flag for x, flag in zip(symbols, flags, strict=True))
    carried = masks.implicit(output)
    of_output = kept[0].reshape(BATCH, -1, case.group).any(-1)
    if not case.carries_mask:
        assert carried is None
    elif case.float_inputs:
        np.testing.assert_array_equal(numpy(carried)[:, case.before :], of_output)
    if not case.float_inputs:
        return

    garbage = [
        np.where(m[..., None], a, 50.0).astype(a.dtype) for a, m in zip(arrays, kept, strict=True)
    ]
    changed = outputs_of(case.call(layer, masked(garbage, kept)[0]))[0]
    changed, output = changed[:, case.before :], output[:, case.before :]
    real = of_output if len(output.shape) == 3 and case.carries_mask else ...
    np.testing.assert_allclose(numpy(changed)[real], numpy(output)[real], rtol=1e-5, atol=1e-5)
    if case.mixes_positions:
        unmasked = outputs_of(case.call(layer, arrays))[0]
        assert np.abs(numpy(unmasked)[real] - numpy(output)[real]).max() > 1e-3


def check_masks_of_other_shapes_are_refused(case):
    """By a message that names the mask, with arrays as with symbols."""
    names = {name for name in inspect.signature(case.layer.call).parameters if "mask" in name}
    names -= {"attention_mask", "use_causal_mask"} | ({"mask"} if case.listed else set())
    layer = case.make()
    case.call(layer, case.arrays())
    symbols = case.symbols(BATCH)
    for name in names:
        for shape in ((BATCH, 17), (BATCH + 1, case.inputs[0][0]), (BATCH,), (BATCH, 5, 5, 5)):
            mask = np.ones(shape, bool)
            for inputs, given in (
                (case.arrays(), mask),
                (symbols, mask),
                (symbols, keras.KerasTensor(shape, "bool")),
            ):
                with pytest.raises(ValueError, match=f"{name}(`|=|.shape=)"):
                    case.call(layer, inputs, **{name: given})
    if case.float_inputs and case.layer is not LearnedQueries:
        for n, symbol in enumerate(symbols):
            with pytest.raises(ValueError, match="mask"):
                other = masks.carry(
                    keras.KerasTensor(symbol.shape), keras.KerasTensor((BATCH, 17), "bool")
                )
                case.call(layer, [*symbols[:n], other, *symbols[n + 1 :]])


def check_symbols_are_refused_what_arrays_are(case):
    """So that a functional model which cannot run is an error where it is made."""
    parameters = inspect.signature(case.layer.call).parameters
    queries = case.inputs[0][0]
    keys = queries if len(case.inputs) == 1 or "context" in parameters else case.inputs[1][0]
    given = [("return_attention_scores", True), ("use_causal_mask", True)]
    given += [("positions", np.arange(queries)), ("segment_ids", np.zeros((BATCH, queries), int))]
    fitting, others = (
        [(queries, keys), (BATCH, 1, queries, keys)],
        [(5, 17), (2, 5, 17), (4, 1, 17)],
    )
    for shape in (*fitting, *others, (BATCH + 1, 1, 1), (BATCH, 17, 1, 1), (queries,)):
        given.append(("attention_mask", np.ones(shape, bool)))
        given.append(("attention_bias", np.zeros(shape, "float32")))
    layer = case.make()
    case.call(layer, case.arrays())
    for name, value in given:
        if name in parameters:
            eager, symbolic = (
                is_refused(case, layer, inputs, {name: value})
                for inputs in (case.arrays(), case.symbols(BATCH))
            )
            assert eager == symbolic, (name, np.shape(value))


def is_refused(case, layer, inputs, given):
    try:
        case.call(layer, inputs, **given)
    except ValueError:
        return True
    return False


def check_a_mask_of_one_row_is_that_of_all(case):
    names = {name for name in inspect.signature(case.layer.call).parameters if "mask" in name}
    names -= {"attention_mask", "use_causal_mask", "slots_mask"}
    names -= {"context_mask" if len(case.inputs) == 1 else "mask"}
    layer = case.make()
    case.call(layer, case.arrays())
    for name in names:
        second = name.startswith(("key", "value", "context"))
        positions = case.inputs[-1 if second else 0][0]
        one = np.arange(positions)[None] < positions - 2
        found, expected = (
            outputs_of(case.call(layer, case.arrays(), **{name: mask}))
            for mask in (one, np.repeat(one, BATCH, axis=0))
        )
        for ours, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(numpy(ours), numpy(other), rtol=1e-5, atol=1e-5)


def check_padding_may_hold_anything(case, policy, value):
    """Real outputs, scores, and gradients of weights and inputs, whatever the padding is."""
    layer = case.make(dtype=policy)
    kept, arrays = padding(case), case.arrays()
    case.call(layer, masked(arrays, kept)[0])
    garbage = [
        np.where(m[..., None], a, value).astype(a.dtype) for a, m in zip(arrays, kept, strict=True)
    ]
    flags = masked(arrays, kept)[1]
    kwargs = {"return_attention_scores": True} if case.returns_scores else {}

    def real(*tensors):
        if KERAS < (3, 15):  # whose layers lose the mask of an input that they cast
            tensors = [keras.ops.cast(t, layer.compute_dtype) for t in tensors]
        tensors = [masks.carry(keras.ops.add(t, 0), m) for t, m in zip(tensors, flags, strict=True)]
        found = outputs_of(case.call(layer, tensors, **kwargs))
        if not case.carries_mask:
            return [keras.ops.square(x) for x in found]
        # What comes out for padding itself is nobody's affair.
        output = masks.clear(found[0], masks.implicit(found[0]))
        return [keras.ops.square(output), *found[1:]]

    def all_of(arrays):
        of_weights, of_inputs = weight_gradients(layer, real, arrays)
        return [numpy(keras.ops.cast(x, "float32")) for x in real(*arrays)], of_weights, of_inputs

    for clean, dirty in zip(all_of(arrays), all_of(garbage), strict=True):
        for one, other in zip(clean, dirty, strict=True):
            assert np.isfinite(one).all()
            np.testing.assert_array_equal(one, other)


def check_mixed_precision(case, policy):
    full, arrays = case.make(), case.arrays()
    expected = outputs_of(case.call(full, arrays))[0]
    layer = case.make(dtype=policy)
    result = outputs_of(case.call(layer, arrays))[0]
    layer.set_weights(full.get_weights())
    result = outputs_of(case.call(layer, arrays))[0]
    assert keras.backend.standardize_dtype(result.dtype) == policy.removeprefix("mixed_")
    assert all(keras.backend.standardize_dtype(w.dtype) == "float32" for w in layer.weights)
    scale = np.abs(numpy(expected)).max()
    tolerance = (0.01 if "float16" in policy and "b" not in policy else 0.06) * scale
    np.testing.assert_allclose(
        numpy(keras.ops.cast(result, "float32")), numpy(expected), atol=tolerance
    )


def check_integers_are_the_floats_that_they_are(case, dtype):
    """Counts, pixels and flags as inputs, of symbols and of arrays, in half precision too."""
    for policy in ("float32", "mixed_bfloat16"):
        layer, arrays = case.make(dtype=policy), [np.abs(4 * array) for array in case.arrays()]
        arrays = [array.astype(dtype) for array in arrays]
        expected = outputs_of(case.call(layer, [array.astype("float32") for array in arrays]))
        symbols = [keras.Input(batch_shape=array.shape, dtype=dtype) for array in arrays]
        for found in (case.call(layer, arrays), case.call(layer, symbols)):
            for one, other in zip(outputs_of(found), expected, strict=True):
                assert keras.backend.standardize_dtype(
                    one.dtype
                ) == keras.backend.standardize_dtype(other.dtype)
        for one, other in zip(outputs_of(case.call(layer, arrays)), expected, strict=True):
            one, other = (numpy(keras.ops.cast(x, "float32")) for x in (one, other))
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def check_compiled_is_eager(case, jit_compile):
    model, arrays = case.model(), case.arrays()
    expected = numpy(model(alone(arrays)))
    model.compile(jit_compile=jit_compile)
    result = model.predict(alone(arrays), verbose=0)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


def check_training_in_float16(case):
    """With Keras's scaled losses, of which a gradient that is not finite would lower the scale."""
    layer, symbols, arrays = case.make(dtype="mixed_float16"), case.symbols(), case.arrays()
    output = outputs_of(case.call(layer, symbols))[0]
    model = keras.Model(alone(symbols), keras.layers.Dense(2, dtype="mixed_float16")(output))
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01), 2.0**10)
    # As a graph only where a step without one would be compiled piece by piece.
    eagerly = keras.backend.backend() != "jax"
    model.compile(optimizer, "mse", run_eagerly=eagerly, jit_compile=not eagerly)
    target = np.random.default_rng(1).normal(size=model(alone(arrays)).shape)
    before = [numpy(weight) for weight in model.trainable_weights]
    for _ in range(2):
        assert np.isfinite(model.train_on_batch(alone(arrays), target))
    assert float(numpy(optimizer.dynamic_scale)) == 2.0**10, "a gradient was not finite"
    for weight, old in zip(model.trainable_weights, before, strict=True):
        after = numpy(weight)
        assert np.isfinite(after).all(), weight.path
        if not weight.path.endswith("key/bias"):
            assert np.abs(after - old).max() > 0, f"{weight.path} did not move"


def check_one_training_step(case, jit_compile):
    layer = case.make()
    symbols = case.symbols(lengths=False)
    # The projection gives layers without weights something to train through.
    output = keras.layers.Dense(2)(outputs_of(case.call(layer, symbols))[0])
    model = keras.Model(alone(symbols), output)
    arrays = case.arrays()
    inputs = alone(arrays)
    target = np.random.default_rng(1).normal(size=model(inputs).shape)
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=jit_compile)
    before = [numpy(weight) for weight in layer.trainable_weights]
    history = model.fit(inputs, target, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    for weight, old in zip(layer.trainable_weights, before, strict=True):
        new = numpy(weight)
        assert np.isfinite(new).all(), weight.path
        # A bias of the keys shifts all scores of a query alike, which no softmax can see.
        if not weight.path.endswith("key/bias"):
            assert np.abs(new - old).max() > 0, f"{weight.path} did not change"


def check_empty_rows(case):
    """A sequence of nothing but padding: finite everywhere, and no gradient into it."""
    if not case.float_inputs:
        return
    layer, arrays = case.make(), case.arrays()
    case.call(layer, arrays)
    kept = padding(case)
    for mask in kept:
        mask[1] = False

    def total(*tensors):
        flags = [keras.ops.convert_to_tensor(mask) for mask in kept]
        tensors = [masks.carry(t, m) for t, m in zip(tensors, flags, strict=True)]
        output = outputs_of(case.call(layer, tensors))[0]
        flag = masks.implicit(output)
        if flag is not None:
            flag = keras.ops.reshape(flag, flag.shape + (1,) * (len(output.shape) - 2))
            output = keras.ops.where(flag, output, keras.ops.zeros_like(output))
        return keras.ops.sum(keras.ops.square(output))

    for gradient in gradients(total, arrays):
        assert np.isfinite(gradient).all()
        np.testing.assert_array_equal(gradient[1], 0.0)


def check_no_rows_and_no_positions(case):
    """Batches of no rows and sequences of no positions: nothing comes out, in its own shape."""
    layer, arrays = case.make(), case.arrays()
    case.call(layer, arrays)
    kwargs = {"return_attention_scores": True} if case.returns_scores else {}
    for rows, positions in ((0, 1), (1, 0)) if case.any_length else ((0, None),):
        cut = [array[:rows, :positions] for array in arrays]
        expected = layer.compute_output_shape(*layer_shapes(case, cut))
        found = outputs_of(case.call(layer, cut, **kwargs))
        assert tuple(found[0].shape) == tuple(expected)
        # A pool of nothing, a class token: what comes out is that of an empty sequence.
        assert all(np.isfinite(numpy(x)).all() for x in found)
    if hasattr(layer, "make_cache") and case.decodes and len(arrays) == 1:
        output, _ = layer(arrays[0][:0], cache=layer.make_cache(0, arrays[0].shape[1]))
        assert tuple(output.shape) == (0, *tuple(case.call(layer, arrays).shape)[1:])


def layer_shapes(case, arrays):
    """What `compute_output_shape` is called with for these arrays."""
    found = [array.shape for array in arrays]
    return [found] if case.listed else found


def check_pieces_are_the_whole(case):
    """Tokens appended to a cache, some of them padding, are one causal pass over all of them."""
    layer, kept = case.make(), padding(case)
    arrays = case.arrays()
    length = arrays[0].shape[1]
    if not case.decodes:
        layer(*arrays)
        with pytest.raises(ValueError, match="cannot have a cache"):
            layer.make_cache(BATCH, length)
        return
    block = isinstance(layer, TransformerBlock)
    # A block attends to its context too; of other layers, one sequence attends to itself here.
    count = 1 + (block and layer.cross_attention)
    (x, *context), _ = masked(arrays[:count], kept[:count])
    whole = outputs_of(layer(x, *context, **({} if block else {"use_causal_mask": True})))[0]
    for seen in [context, [layer.cache_context(*context)]] if context else [[]]:
        cache, start = layer.make_cache(BATCH, length), 0
        for size in (2, 1, length - 3):
            at = slice(start, start + size)
            (piece,), _ = masked([arrays[0][:, at]], [kept[0][:, at]])
            output, *_, cache = layer(piece, *seen, cache=cache)
            np.testing.assert_allclose(
                numpy(output)[kept[0][:, at]],
                numpy(whole)[:, at][kept[0][:, at]],
                rtol=1e-4,
                atol=1e-5,
            )
            start += size
