"""Norms and factors of features, those that layers make, and how a block puts them together."""

from typing import Any, Literal, TypeAlias, get_args

import keras
from keras import ops

from keras_attention import saving
from keras_attention.backend import backend
from keras_attention.core.hints import Tensor
from keras_attention.sequences import inputs, masks, shapes

NamedNorm = Literal["layer", "rms"]
NAMES = get_args(NamedNorm)


class Scaling(saving.ConfigurableLayer, saved=False):
    """The base of all: features are multiplied by learned factors, which start at a number."""

    _start = 1.0
    # How many of the last axes the factors have.
    _axes = 1

    def build(self, x_shape):
        start = keras.initializers.Constant(self._start)
        self.scale = self.add_weight(tuple(x_shape[-self._axes :]), start, name="scale")

    def _cleared(self, x):
        """`x` as floats without padding: the gradient of the factors sums over all rows."""
        mask = masks.implicit(x)
        (x,) = inputs.floats((x,), self.compute_dtype)
        return masks.clear(x, mask)

    compute_mask = masks.passed_on

    def compute_output_shape(self, x_shape):
        return tuple(x_shape)


class RMSNorm(Scaling):
    r"""Features divided by their root mean square (Zhang & Sennrich 2019, equation 4).

    `x / √(mean(x²) + ε) · (offset + w)`, in float32 (float64 for float64). Gemma's norm has
    `offset=1`, so that a weight decay pulls the scale to 1.

    Args:
        epsilon: added to the mean square.
        offset: added to the weight, which starts at `1 − offset`.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Call arguments:
        x: (..., D).

    Returns:
        The same shape, carrying the mask of `x`.

    Raises:
        ValueError: a number is not finite, or `epsilon` not positive.

    >>> import keras, keras_attention
    >>> norm = keras_attention.RMSNorm(offset=1.0)
    >>> [round(float(y), 4) for y in norm(keras.ops.convert_to_tensor([[3.0, -3.0]]))[0]]
    [1.0, -1.0]
    """

    # In float16, the sums of a block may be float32, with squares and numbers that it has not.
    _unrounded = ("x",)

    def __init__(self, epsilon: float = 1e-6, offset: float = 0.0, **kwargs: Any):
        super().__init__(**kwargs)
        self.epsilon = shapes.check_positive("epsilon", epsilon)
        self.offset = shapes.check_number("offset", offset)
        self._start = 1.0 - self.offset

    def call(self, x: Tensor) -> Tensor:
        x, scale = self._cleared(x), self.scale
        if self.offset:
            # Before it is rounded to the compute dtype: 1 + w has few digits in bfloat16.
            wide = shapes.accumulation_dtype(x)
            scale = ops.cast(self.scale.value, wide) + self.offset
        return ops.cast(backend.rms_normalization(x, scale, self.epsilon), self.compute_dtype)


@saving.register
class PooledNorm(keras.layers.LayerNormalization):
    """A norm of the pooled vector alone, `pooled(x)`: a call returns its input as it is (CLIP)."""

    def call(self, inputs):
        return inputs

    def pooled(self, x):
        """The first vectors (B, D) of sequences (B, T, D), normalized."""
        return super().call(x[:, 0])


class LayerScale(Scaling):
    r"""Features times learned factors that start small (Touvron et al. 2021, CaiT, equation 4).

    `x · γ`. After the branches of a block, `x + γ · branch(norm(x))`, it lets deep models begin as
    nearly the identity. It is a norm of a `TransformerBlock` with `residual="sandwich"`.

    Args:
        value: what the factors start at: 0.1 for up to 18 blocks, 1e-5 for 24, 1e-6 for more.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Call arguments, results and errors are those of `RMSNorm`.

    >>> import keras, keras_attention
    >>> scale = keras_attention.LayerScale(0.1)
    >>> norm = {"attention_output": scale, "feed_forward_output": scale}
    >>> block = keras_attention.TransformerBlock(64, 2, residual="sandwich", norm=norm)
    >>> block(keras.random.normal((2, 5, 16))).shape
    (2, 5, 16)
    """

    def __init__(self, value: float = 0.1, **kwargs: Any):
        super().__init__(**kwargs)
        self._start = self.value = shapes.check_number("value", value)

    def call(self, x: Tensor) -> Tensor:
        return self._cleared(x) * self.scale


class HeadNorm(Scaling):
    r"""A norm of the features of heads, each with a factor of its own, as a `qk_norm`.

    `x / √(mean(x²) + ε) · w` with w (H, K), in float32 (float64 for float64), where x are the K
    features of a head (LayerNorm: Command R+, StableLM 2), or of all heads (RMSNorm: OLMo 2).

    Args:
        norm: "rms", or "layer", which subtracts mean(x) from x first.
        together: whether the means are over all heads.
        epsilon: added to the mean square.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Call arguments, results and errors are those of `RMSNorm`, for heads (..., H, K).

    >>> import keras, keras_attention
    >>> norm = keras_attention.HeadNorm("rms", together=True)
    >>> layer = keras_attention.MultiHeadAttention(2, 8, qk_norm=norm)
    >>> layer(keras.random.normal((2, 5, 16))).shape, layer.query_norm.scale.shape
    ((2, 5, 16), (2, 8))
    """

    _axes = 2

    def __init__(
        self, norm: NamedNorm = "rms", together: bool = False, epsilon: float = 1e-6, **kwargs: Any
    ):
        super().__init__(**kwargs)
        self.norm = shapes.check_choice("norm", norm, NAMES)
        self.together = shapes.check_flag("together", together)
        self.epsilon = shapes.check_positive("epsilon", epsilon)

    def call(self, x: Tensor) -> Tensor:
        x, axes = self._cleared(x), (-2, -1) if self.together else (-1,)
        wide = ops.cast(x, shapes.accumulation_dtype(x))
        if self.norm == "layer":
            wide = wide - ops.mean(wide, axes, keepdims=True)
        squares = ops.mean(ops.square(wide), axes, keepdims=True)
        found = wide * ops.rsqrt(squares + self.epsilon) * ops.cast(self.scale, wide.dtype)
        return ops.cast(found, x.dtype)


def check(name, given, names):
    """`given`, one of `names`, or a Keras layer, maybe as its saved configuration."""
    if isinstance(given, dict) and "class_name" in given:
        given = saving.deserialize(given)
    if isinstance(given, keras.layers.Layer):
        return given
    if not isinstance(given, (str, bool, type(None))) or given not in names:
        raise ValueError(
            f"`{name}` must be one of {names}, or a Keras layer. Received: {name}={given!r}"
        )
    return given


class _LayerNorm(keras.layers.LayerNormalization):
    """Keras's, whose size is known where a backend traces the sizes of arrays."""

    def build(self, input_shape):
        self._size = input_shape[-1]
        super().build(input_shape)

    def call(self, inputs):
        found = backend.layer_normalization(inputs, self._size, self.gamma, self.beta, self.epsilon)
        return ops.cast(found, self.compute_dtype)


def make(given, name, shape, dtype, epsilon=None, **layer_norm):
    """A built norm, "rms", "layer" or a copy of a layer; None for None."""
    # `epsilon` is that of the named ones, None for their default; `layer_norm` are further
    # arguments of `LayerNormalization`.
    if given is None:
        return None
    chosen = {} if epsilon is None else {"epsilon": epsilon}
    if given == "rms":
        norm = RMSNorm(name=name, dtype=dtype, **chosen)
    elif given == "layer":
        norm = _LayerNorm(name=name, dtype=dtype, **chosen, **layer_norm)
    else:
        norm = type(given).from_config({**given.get_config(), "name": name})
        # It has no weights itself. Keras quantizes only built layers.
        given.built = True
    # A layer that drops the mask would warn of it; it was read already.
    norm.supports_masking = True
    norm.build(shape)
    return norm


Norm: TypeAlias = NamedNorm | keras.layers.Layer | dict[str, Any]

# The branches of a block, with the beginning of the names of their parts, which are 0.1.0's.
BRANCHES = {
    "attention": "attention",
    "cross_attention": "context_attention",
    "feed_forward": "feed_forward",
}


def check_branches(given, residual):
    """The argument `norm` of a block: a name, a layer, or a dictionary of both by branch."""
    if not isinstance(given, dict) or "class_name" in given:
        return check("norm", given, NAMES)
    after = [f"{branch}_output" for branch in BRANCHES] if residual == "sandwich" else []
    branches = [*BRANCHES, *after, "context"]
    unknown = sorted(set(given) - set(branches))
    if unknown:
        raise ValueError(
            f"`norm` of a block with residual={residual!r} must be a dictionary with keys among "
            f"{branches}. Received keys: {unknown}"
        )
    found = {}
    for branch, norm in given.items():
        names = (*NAMES, None)
        if residual == "parallel" and branch not in ("attention", "context"):
            names += ("shared",)
        found[branch] = check(f"norm[{branch!r}]", norm, names)
    return found


def make_branch(block, branch, shape):
    """Makes the norms of a branch as attributes of the block, and returns them for a residual."""
    found, policy = {}, shapes.wide_policy(block, block.wide_residual)
    for name in [branch, f"{branch}_output"] if block.residual == "sandwich" else [branch]:
        norm = block.norm.get(name, "layer") if isinstance(block.norm, dict) else block.norm
        path = f"{name.replace(branch, BRANCHES[branch])}_norm"
        if norm == "shared":
            norm = block.attention_norm
        else:
            norm = make(norm, path, shape, policy, block.layer_norm_epsilon)
        setattr(block, path, norm)
        found[name] = _identity if norm is None else norm
    return found


def _identity(x):
    return x


# A residual is a function of x, the branches by name in their order, functions of x, and `norms`,
# functions by the names of branches: `name` is what stands before a branch or, in `post`, after the
# sum, `name_output` what stands after a branch in a sandwich. `keep` is applied to a branch before
# it is added: dropout. What a branch among `alone` gives takes the place of x.


def post(x, branches, norms, keep, alone=()):
    """`x = norm(x + branch(x))` (Vaswani et al. 2017)."""
    for name, branch in branches.items():
        found = keep(branch(x))
        x = norms[name](ops.cast(found, x.dtype) if name in alone else x + found)
    return x


def pre(x, branches, norms, keep, alone=()):
    """`x = x + branch(norm(x))` (Xiong et al. 2020); with norms after branches, a sandwich."""
    for name, branch in branches.items():
        after = norms.get(f"{name}_output", _identity)
        found = keep(after(branch(norms[name](x))))
        x = ops.cast(found, x.dtype) if name in alone else x + found
    return x


def parallel(x, branches, norms, keep, alone=()):
    """`x = x + branch_1(norm_1(x)) + branch_2(norm_2(x))` (Wang & Komatsuzaki 2021, GPT-J)."""
    # One norm for several branches is computed once.
    normalized = {norm: norm(x) for norm in dict.fromkeys(map(norms.get, branches))}
    for name, branch in branches.items():
        x = x + keep(branch(normalized[norms[name]]))
    return x


RESIDUALS = {"post": post, "pre": pre, "sandwich": pre, "parallel": parallel}
