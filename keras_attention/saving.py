"""Serialization: configurations are derived from the constructor's signature, so none can be lost.

The convention of the package is one attribute per constructor argument, of the same name. Given
that, neither `get_config` nor a subclass of a slot or layer needs a list written by hand.
"""

import functools
import inspect
import typing
import warnings

import keras

from keras_attention.core import hints, keras_private, parts, rematerialization
from keras_attention.sequences import inputs, shapes

PACKAGE = "keras_attention"

# The types of what has no parts.
_PLAIN = frozenset([bool, int, float, str, type(None)])

# The maximum nesting depth of objects: far more than needed, far less than Python's stack has.
DEEPEST = 100

register = keras.saving.register_keras_serializable(package=PACKAGE)


def register_own(cls, saved):
    """Registers a class of this package, unless no file has it."""
    if saved and cls.__module__.startswith(f"{PACKAGE}."):
        register(cls)


def list_inherited_arguments(cls):
    """Makes the signature of a layer list by name what its constructor passes on by `**kwargs`."""
    if "__init__" not in vars(cls):
        return
    *own, last = inspect.signature(cls.__init__).parameters.values()
    if last.kind is last.VAR_KEYWORD:
        names = {parameter.name for parameter in own}
        inherited = [
            parameter.replace(kind=parameter.KEYWORD_ONLY)
            for name, parameter in constructor_arguments(cls, ConfigurableLayer).items()
            if name not in names
        ]
        parameters = [*own, *inherited, last.replace(annotation="Any")]
        cls.__init__.__signature__ = inspect.Signature(parameters)


def constructor_arguments(cls, stop=object):
    """The parameters of `cls(...)` by name, those passed on through `**kwargs` included."""
    # Walks up the base classes of `cls` while each passes its `**kwargs` on, and ends before
    # `stop`, whose `get_config` has its own arguments.
    found: dict[str, inspect.Parameter] = {}
    for owner in cls.__mro__:
        if owner is stop or owner is object:
            break
        if "__init__" not in vars(owner):
            continue
        parameters = list(inspect.signature(owner.__init__).parameters.values())[1:]
        # A subclass may have an argument of this class under its former name.
        known = {new for old, new in former_names(owner).items() if old in found}
        for parameter in parameters:
            named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
            if named and parameter.name not in known:
                found.setdefault(parameter.name, parameter)
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            break
    return {n: p for n, p in found.items() if n not in getattr(cls, "_fixed_arguments", ())}


def renamed(**names):
    """A class decorator: constructor arguments that had other names before, as `old="new"`.

    The former names remain keywords of the constructor, and so keys of saved configurations, and
    attributes. Signatures and new configurations have the present ones.
    """

    def decorate(cls):
        init = cls.__init__

        @functools.wraps(init)
        def init_by_either(self, *args, **kwargs):
            for old, new in names.items():
                if old in kwargs and new in kwargs:
                    raise TypeError(
                        f"{type(self).__name__} takes `{new}`, whose former name is `{old}`: pass "
                        f"one of the two. Received: {new}={kwargs[new]!r}, {old}={kwargs[old]!r}"
                    )
            init(self, *args, **{names.get(name, name): x for name, x in kwargs.items()})

        # Keras reads the signature of the function itself too.
        init_by_either.__signature__ = inspect.signature(init)  # type: ignore[attr-defined]
        cls.__init__ = init_by_either
        for old, new in names.items():
            setattr(cls, old, _alias(new))
        cls._former_names = {**former_names(cls), **names}
        return cls

    return decorate


def former_names(cls):
    """The former names of constructor arguments, with the present ones: `{"old": "new"}`."""
    return getattr(cls, "_former_names", {})


def _alias(name):
    return property(
        lambda self: getattr(self, name), lambda self, value: setattr(self, name, value)
    )


def check_free(cls, arguments):
    """Raises if `arguments` include one that the preset `cls` fixes."""
    for name in getattr(cls, "_fixed_arguments", ()):
        if name in arguments:
            raise TypeError(
                f"{cls.__name__} does not accept `{name}`. Received: {name}={arguments[name]!r}"
            )


def argument(owner, name, attribute=None):
    """The constructor argument `name` of `owner`, stored in an attribute of that name."""
    try:
        return getattr(owner, attribute or name)
    except AttributeError:
        raise TypeError(
            f"{type(owner).__name__} must store its constructor argument `{name}` in an attribute "
            f"of that name, `self.{name}`, to be saved and compared. Received: none"
        ) from None


def serialize(value):
    """A JSON-ready form of one constructor argument."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [serialize(item) for item in value]
    if inspect.isfunction(value) or inspect.isbuiltin(value):
        return keras.activations.serialize(value)
    config = keras.saving.serialize_keras_object(value)
    if not keras_private.saving_a_model():
        return config
    name, own = type(value).__name__, not type(value).__module__.startswith("keras.")
    if own and config.get("registered_name") == name and config["class_name"] == name:
        warnings.warn(
            f"{name} is not registered: files of this model load only where custom_objects has "
            f"it. Decorate the class with "
            '`@keras.saving.register_keras_serializable(package="my_package")`.',
            stacklevel=2,
        )
    if isinstance(value, keras.layers.Layer):
        # A table of positions shared by layers is still shared after loading. Keras marks the
        # second occurrence, and looks for the first, which has been copied by then.
        config["shared_object_id"] = id(value)
    return config


def deserialize(value):
    """The object that `serialize` wrote; anything else is returned unchanged."""
    if isinstance(value, list):
        return [deserialize(item) for item in value]
    if isinstance(value, dict) and "class_name" in value:
        return keras.saving.deserialize_keras_object(value)
    return value


def _as_written(cls, config):
    """A configuration with strings where Keras's reader of `.h5` files has put functions."""
    # It replaces strings that name functions of `keras.layers`, such as "add", or of a custom
    # scope.
    parameters = constructor_arguments(cls, ConfigurableLayer)
    functions = {n for n, parameter in parameters.items() if parameter.annotation in _FUNCTIONS}
    return {
        name: keras_private.name_in_h5(x) if inspect.isfunction(x) and name not in functions else x
        for name, x in config.items()
    }


# The hint of arguments that may be functions, and its names.
_FUNCTIONS = (hints.Activation, "Activation", "Initializer", "Regularizer", "Constraint")

# Names that papers and other libraries have for what a slot has under another, or another slot.
_KNOWN_AS = {
    **dict.fromkeys(("rope", "roformer"), 'position="rotary"'),
    **dict.fromkeys(("sinusoidal", "sincos"), "the layer SinCosPositionEmbedding"),
    "t5": 'position="relative_bias"',
    "swin": "position=positions.GridRelativeBias(…)",
    "bahdanau": 'score="additive"',
    **dict.fromkeys(("luong", "multiplicative", "bilinear"), 'score="general"'),
    **dict.fromkeys(("sliding_window", "window", "local"), "pattern=patterns.SlidingWindow(…)"),
    **dict.fromkeys(("lower_triangular", "autoregressive"), 'pattern="causal"'),
}


def slot(kind, base, builtin, value, optional=False):
    """Resolves the argument of a slot: an object, its string id, or its saved config.

    `kind` is the slot's name in messages, `base` the class an object must have, `builtin` the
    classes that a snake_case string may name. None stays None if the slot is `optional`.
    """
    if isinstance(value, base) or (optional and value is None):
        if isinstance(value, keras.layers.Layer) and "built" not in vars(value):
            name = type(value).__name__
            raise TypeError(
                f"The {kind} is a Keras layer: `{name}.__init__` must begin with "
                f"`super().__init__(**kwargs)`. Received: a {name} that did not call it"
            )
        return value
    if isinstance(value, str):
        if value not in builtin:
            known = _KNOWN_AS.get(value.lower().removesuffix("_attention"))
            raise ValueError(
                f"Unknown {kind} {value!r}{f', which is {known} here' if known else ''}. Expected "
                f"one of {sorted(builtin)}, or an instance of a subclass of {base.__name__}. "
                f"Received: {kind}={value!r}"
            )
        if needed := _needed(builtin[value]):
            raise ValueError(
                f"The {kind} {value!r} needs a `{needed}`, which a string cannot give. Pass an "
                f"object: {kind}s.{builtin[value].__name__}({needed}). Received: {kind}={value!r}"
            )
        return builtin[value]()
    if isinstance(value, dict):
        value = deserialize(value)
        if isinstance(value, base):
            return value
    raise TypeError(
        f"`{kind}` must be a string, an instance of {base.__name__} or its saved config. "
        f"Received: {value!r} (of type {type(value).__name__})"
        + (f". Pass an instance, {value.__name__}(…)" if isinstance(value, type) else "")
    )


@functools.cache
def _needed(cls):
    """The first argument that a class needs, or None."""
    found = constructor_arguments(cls, keras.layers.Layer)
    return next((name for name, x in found.items() if x.default is x.empty), None)


def check_layer(name, given, kind=keras.layers.Layer, optional=False):
    """`given`, a Keras layer of a class, or None if it is `optional`."""
    if isinstance(given, kind) or (given is None and optional):
        return given
    expected = "a Keras layer" if kind is keras.layers.Layer else f"of class `{kind.__name__}`"
    raise TypeError(
        f"`{name}` must be {expected}{', or None' if optional else ''}. "
        f"Received: {given!r} (of type {type(given).__name__})"
    )


def check_built(name, layer):
    """`layer`, a Keras layer or model that has its weights."""
    if not check_layer(name, layer).built:
        raise ValueError(
            f"`{name}` must be built, to have weights: call it once. Received: {layer!r}, not built"
        )
    return layer


def check_depth(name, depth):
    """Raises if objects of a class are nested so deep that using them may exhaust the stack."""
    if depth > DEEPEST:
        raise ValueError(
            f"Objects may be nested {DEEPEST} deep. Received: {name} with more than that inside"
        )


def _depth(config):
    """The nesting depth of saved objects in a config, computed without recursion."""
    depth, level = 0, [config]
    while level and depth <= DEEPEST:
        depth += any(isinstance(part, dict) and "class_name" in part for part in level)
        level = [
            inner
            for part in level
            if isinstance(part, (dict, list, tuple))
            for inner in (part.values() if isinstance(part, dict) else part)
        ]
    return depth


class Configurable:
    """A plain object: configuration, equality and repr come from the constructor's signature."""

    def __init_subclass__(cls, saved=True, **kwargs):
        super().__init_subclass__(**kwargs)
        register_own(cls, saved)

    def _arguments(self):
        """The arguments of the constructor, by name."""
        return {name: argument(self, name) for name in constructor_arguments(type(self))}

    def get_config(self):
        return {name: serialize(value) for name, value in self._arguments().items()}

    @classmethod
    def from_config(cls, config):
        check_depth(cls.__name__, _depth(config))
        return cls(**{name: deserialize(value) for name, value in config.items()})

    def _key(self):
        return tuple(map(_hashable, self._arguments().values()))

    def __eq__(self, other):
        if type(self) is not type(other):
            return NotImplemented
        return self._key() == other._key()

    def __hash__(self):
        return hash((type(self), self._key()))

    def __repr__(self):
        values = ", ".join(f"{name}={value!r}" for name, value in self._arguments().items())
        return f"{type(self).__name__}({values})"


def _hashable(value):
    return tuple(map(_hashable, value)) if isinstance(value, (list, tuple)) else value


class ConfigurableLayer(keras.layers.Layer):
    """A Keras layer whose configuration comes from its constructor's signature.

    Its build configuration says of its sublayers what Keras's does not: see `parts`.
    """

    # Whether it may be called with ragged and sparse tensors.
    _takes_any_layout = False
    # Of a layer that takes masks as arguments, what they are, for the message about another name.
    _masks: str | None = None
    # The arguments that are not cast, of a layer whose calls `inputs.of_call` converts.
    _unrounded: tuple[str, ...] | None = None
    # Whether its dtype is not that of the layer around it, but by default `shapes.full_precision`.
    _has_own_dtype = False
    # What it was built for beside shapes: names of attributes, which begin with an underscore.
    _build_sizes: tuple[str, ...] = ()
    # Whether a file has had weights of it before it was built.
    _was_left_out = False
    # The parts that were frozen in an `.h5` file.
    _frozen_parts: tuple[str, ...] = ()
    # The arguments that Keras reads itself from a configuration.
    _read_by_keras: tuple[str, ...] = ("dtype",)

    def __init__(self, **kwargs: typing.Any):
        if self._has_own_dtype:
            compute_dtype = keras.config.dtype_policy().compute_dtype
            kwargs["dtype"] = kwargs.get("dtype") or shapes.full_precision(compute_dtype)
        super().__init__(**kwargs)
        # By `compute_mask`, each passes masks on, or says that they end.
        self.supports_masking = True
        if self._unrounded is not None:
            keras_private.keep_inputs_as_they_are(self)

    def __init_subclass__(cls, saved=True, **kwargs):
        super().__init_subclass__(**kwargs)
        register_own(cls, saved)
        list_inherited_arguments(cls)
        if "build" in vars(cls):
            cls.build = parts.freezing(cls.build)

    dtype_policy = property(keras.Layer.dtype_policy.fget, parts.set_dtype_policy)

    if not typing.TYPE_CHECKING:

        def __getattr__(self, name):
            # Python calls it where an attribute is missing, or a property reads one that is; on
            # PyTorch, for each weight and part.
            try:
                return super().__getattr__(name)
            except AttributeError:
                unbuilt = not vars(self).get("built")
                absent = unbuilt or isinstance(getattr(type(self), name, None), property)
            if absent and not name.startswith("_") and not hasattr(keras.Model, name):
                kind = type(self).__name__
                raise AttributeError(
                    f"This {kind} has no `{name}` yet. Call it once, or build it, for what is made "
                    f"in `build`. Received: an unbuilt {kind}"
                    if unbuilt
                    else f"This {kind} has no `{name}`, by its arguments. Received: a built {kind}"
                )
            return object.__getattribute__(self, name)

    def __setattr__(self, name, value):
        # Keras searches what is stored for layers and variables, which takes most of the time of a
        # constructor on TensorFlow. Numbers and names have none, unless they replace one.
        known = vars(self)
        plain = type(value) in _PLAIN and type(known.get(name)) in _PLAIN
        if plain and name not in known.get("_modules", ()) and not keras.config.is_nnx_enabled():
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def __call__(self, *args, **kwargs):
        args, kwargs = inputs.of_call(self, args, kwargs)
        return super().__call__(*args, **kwargs)

    def _keep_of(self, part, *names):
        """Stores arguments of the constructor as a part, which was given them, has checked them."""
        for name in names:
            setattr(self, name, getattr(part, name))

    def _keep_options(self, kind, initializer, regularizer, constraint):
        """Stores the arguments `kind_initializer`, `kind_regularizer` and `kind_constraint`."""
        setattr(self, f"{kind}_initializer", keras.initializers.get(initializer))
        setattr(self, f"{kind}_regularizer", keras.regularizers.get(regularizer))
        setattr(self, f"{kind}_constraint", keras.constraints.get(constraint))

    def _add_weight(self, kind, shape, name=None, **options):
        """A weight with these arguments; with a `name` it is one of several of its kind."""
        initializer = getattr(self, f"{kind}_initializer")
        return self.add_weight(
            name=name or kind,
            shape=shape,
            initializer=clone_initializer(initializer) if name else initializer,
            regularizer=getattr(self, f"{kind}_regularizer"),
            constraint=getattr(self, f"{kind}_constraint"),
            **options,
        )

    def get_config(self):
        config = super().get_config()
        for name in constructor_arguments(type(self), stop=ConfigurableLayer):
            # With an underscore if the plain name means something else to Keras.
            private = f"_{name}"
            value = argument(self, name, private if private in vars(self) else name)
            config[name] = serialize(value)
            if self.built:
                # This layer builds it again, so that the paths of its variables have this name.
                for inner in config[name] if isinstance(value, list) else [config[name]]:
                    if isinstance(inner, dict):
                        inner.pop("build_config", None)
        if keras_private.writes_h5():
            parts.check_h5(self)
            config |= {"frozen": places} if (places := parts.frozen(self)) else {}
        return config

    @classmethod
    def from_config(cls, config):
        config = _as_written(cls, config)
        frozen = tuple(config.pop("frozen", ()))
        kept = cls._read_by_keras
        objects = {n: v if n in kept else deserialize(v) for n, v in config.items()}
        layer = super().from_config(objects)
        if frozen:
            layer._frozen_parts = frozen
        return layer

    def rematerialized_call(self, call, *args, **kwargs):
        return rematerialization.of_call(self, super().rematerialized_call, call, *args, **kwargs)

    def add_weight(self, *args, **kwargs):
        shape = kwargs.get("shape", args[0] if args else ())
        if isinstance(shape, (tuple, list)):
            shapes.check_memory(kwargs.get("name") or "weight", shape)
        return super().add_weight(*args, **kwargs)

    def load_own_variables(self, store):
        # Keras looks for a layer in several places of a file, and forgets its own error of an
        # unbuilt layer when it comes to one where nothing is stored.
        self._was_left_out |= not self.built and keras_private.stores_weights(store)
        if not self.built and self._was_left_out:
            raise ValueError(
                f"The file has weights of {self.name!r}, which is not built, so that they would be "
                "lost. The layer or model around it must build it: its `build` calls that of each "
                "layer in it, or it has no `build`, and a `call` that Keras can trace. Received: "
                f"an unbuilt {type(self).__name__}"
            )
        super().load_own_variables(store)

    def get_build_config(self):
        config = super().get_build_config()
        if config is None:
            return None
        # Configurations, or modes where there is none.
        quantized = {
            path: serialize(getattr(part, "quantization_config", None)) or part.quantization_mode
            for path, part in parts.inside(self)
            if getattr(part, "quantization_mode", None) is not None
        }
        seeds = parts.seeds(self) if keras_private.saving_a_model() else ()
        seeds = [keras.ops.convert_to_numpy(variable).tolist() for variable in seeds]
        kept = {"quantized": quantized, "frozen": parts.frozen(self), "seeds": seeds}
        sizes = {name: getattr(self, f"_{name}") for name in self._build_sizes}
        return {**config, **sizes, **{name: value for name, value in kept.items() if value}}

    def build_from_config(self, config):
        config = dict(config)
        quantized = config.pop("quantized", {})
        frozen, seeds = config.pop("frozen", []), config.pop("seeds", [])
        for name in self._build_sizes:
            setattr(self, f"_{name}", config.pop(name))
        super().build_from_config(config)
        found = dict(parts.inside(self))
        for path, quantization in quantized.items():
            part = found.get(path)
            if part is not None and part.quantization_mode is None:
                # A mode alone, in files of version 0.1, or a configuration.
                given = "mode" if isinstance(quantization, str) else "config"
                part.quantize(**{given: deserialize(quantization)})
        parts.freeze(self, frozen)
        parts.set_seeds(self, seeds)


class ConfigurableModel(ConfigurableLayer, keras.Model, saved=False):
    """A `ConfigurableLayer` that is a Keras model."""

    def save(self, filepath, *args, **kwargs):
        """As `keras.Model.save`, of which the legacy format is refused.

        An `.h5` file has only functional models: of another, Keras would read no weights.
        """
        if str(filepath).endswith((".h5", ".hdf5")):
            raise ValueError(
                f"The legacy format `.h5` has functional models alone, and no {type(self).__name__}"
                f": save the model as `.keras`. Received: filepath={str(filepath)!r}"
            )
        super().save(filepath, *args, **kwargs)

    def quantize(self, mode=None, config=None, filters=None, **kwargs):
        """As `keras.Model.quantize`, with one warning, of the matrices that stay in float."""
        with warnings.catch_warnings():
            # Keras says so of each layer that has no matrix, too.
            warnings.filterwarnings("ignore", ".*does not have a `quantize")
            super().quantize(mode, config=config, filters=filters, **kwargs)
        wide = [
            weight.path
            for layer in keras_private.sublayers(self)
            if layer.quantization_mode is None
            for weight, _ in keras_private.own_weights(layer)
            if len(weight.shape) > 1 and "float" in weight.dtype and "bias" not in weight.name
        ]
        if wide and filters is None:
            warnings.warn(
                f"{len(wide)} weights stay in float, since their layers cannot be quantized: "
                f"{', '.join(wide[:8])}{', …' if len(wide) > 8 else ''}",
                stacklevel=3,
            )


def clone_initializer(initializer):
    """A new copy, since one initializer with a seed would give every weight the same values."""
    if not isinstance(initializer, keras.initializers.Initializer):
        return initializer
    return type(initializer).from_config(initializer.get_config())
