"""Loops of generation: the step that they make, one token per row, their result, and programs."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import NamedTuple, TypeAlias, TypeVar

import keras
from keras import ops

from keras_attention.backend import backend
from keras_attention.core.hints import Tensor, Tensors
from keras_attention.generation.constraints import NONE, Constraints, Rules, among
from keras_attention.sequences import inputs, shapes


class Generated(NamedTuple):
    """Generated tokens and their probabilities under the model.

    With `beam_search(num_return=N)` each has a second axis (B, N, …) for the N hypotheses of a row,
    best first. N is 1 by default, and `num_return=None` omits the axis.

    Args:
        tokens: (B, max_tokens) int32, stop token included; `pad_token` follows it.
        lengths: (B,) int32, the number of generated tokens, stop token included.
        log_probabilities: (B, max_tokens) float32, log p(token | all before it) of each token under
            the model's own distribution, softmax(logits); 0 for padding, but −inf for the first
            padding of a row in which all tokens were forbidden.
        scores: (B,) float32, the sum of `log_probabilities`; for `beam_search` that sum divided by
            the length penalty, −inf if there is no hypothesis.

    >>> import keras
    >>> from keras_attention import generation
    >>> def step(tokens, cache):                            # token 1 after any other
    ...     return keras.ops.one_hot(keras.ops.ones_like(tokens), 3), cache
    >>> found = generation.greedy(step, [0, 2], (), max_tokens=2)
    >>> found._fields
    ('tokens', 'lengths', 'log_probabilities', 'scores')
    >>> keras.ops.convert_to_numpy(found.tokens)
    array([[1, 1],
           [1, 1]], dtype=int32)
    """

    tokens: Tensor
    lengths: Tensor
    log_probabilities: Tensor
    scores: Tensor


# What users give: `logits, cache = step(tokens, cache)`, with `memory` third where there is one.
Step: TypeAlias = Callable[..., tuple[Tensor, Tensors]]


class Steps:
    """The user's `step` over a flat list of tensors, which a loop can carry."""

    def __init__(self, arguments, copies=1):
        """Of the arguments of `greedy`, among others; each row becomes so many adjacent rows."""
        given = inputs.Given(**arguments)
        if not callable(given.step):
            raise TypeError(
                "`step` must be a function (tokens, cache) -> (logits, cache). "
                f"Received: {given.step!r}"
            )
        shapes.check_count("max_tokens", given.max_tokens)
        _check_integers("pad_token", [given.pad_token])
        if not isinstance(given.stop_tokens, (tuple, list)):
            raise TypeError(
                "`stop_tokens` must be a tuple of integers. "
                f"Received: stop_tokens={given.stop_tokens!r}"
            )
        _check_integers("stop_tokens", given.stop_tokens)
        self.step = given.step
        self.stop_tokens = tuple(given.stop_tokens)
        meaning = "the last given token of each row (start token, or last of the prompt)"
        self.tokens = _integers("tokens", given.tokens, 1, f"(B,), {meaning}")
        self.rows = ops.shape(self.tokens)[0]
        self.memory, self.cache = (
            keras.tree.map_structure(functools.partial(self._rows, name, copies=copies), nested)
            for name, nested in (("memory", given.memory), ("cache", given.cache))
        )
        # A loop cannot carry None, which a cache may contain.
        self.leaves = self._leaves(self.cache)
        self.rules, self.prompt = None, None
        if given.constraints is not None:
            self._constrain(given.constraints, given.prompt, given.max_tokens, copies)

    def _constrain(self, constraints, prompt, max_tokens, copies):
        """Sets the rules of the loop, and the prompt (R, T) if they depend on it."""
        if not isinstance(constraints, Constraints):
            raise TypeError(
                "`constraints` must be None or a `generation.Constraints`. "
                f"Received: {constraints!r}"
            )
        self.rules = Rules(constraints, self.stop_tokens, max_tokens)
        of_text = self.rules.of_text()
        if of_text and prompt is None:
            raise ValueError(
                "`prompt` must be the text (B, T) before the first generated token, with `tokens` "
                f"as its last column, for {', '.join(of_text)}. Received: prompt=None"
            )
        if of_text:
            meaning = "(B, T), the tokens before the first generated one, and -1 for padding"
            prompt = _integers("prompt", prompt, 2, meaning)
            self.prompt = self.rules.before(self._rows("prompt", prompt, copies))

    def __call__(self, tokens, leaves, memory):
        """Float32 logits (R, V) of tokens (R,), and the leaves of the next cache."""
        remaining = iter(leaves)
        cache = keras.tree.pack_sequence_as(
            self.cache,
            [None if leaf is None else next(remaining) for leaf in keras.tree.flatten(self.cache)],
        )
        context = () if memory is None else (memory,)
        found = self.step(tokens, cache, *context)
        if not isinstance(found, (tuple, list)) or len(found) != 2:
            raise ValueError(
                f"`step` must return (logits, cache). Received: {type(found).__name__}"
            )
        logits, cache = found
        return self._checked(logits, tokens.shape[0]), self._same(cache)

    def stops(self, tokens):
        """Which tokens are stop tokens: a boolean array of their shape."""
        return among(tokens, self.stop_tokens)

    def _rows(self, name, leaf, copies):
        """A tensor of the cache or the memory, with each row repeated `copies` times."""
        if leaf is None:
            return None
        leaf = ops.convert_to_tensor(leaf)
        if len(leaf.shape) == 0:
            raise ValueError(
                f"Every tensor of `{name}` must have rows on axis 0. Received a scalar: {leaf}"
            )
        sizes = {"tokens": self.tokens.shape[0], name: leaf.shape[0]}
        shapes.check_same(f"Rows of `tokens` and of every tensor of `{name}`", **sizes)
        return leaf if copies == 1 else ops.repeat(leaf, copies, axis=0)

    def _leaves(self, cache):
        return tuple(leaf for leaf in keras.tree.flatten(cache) if leaf is not None)

    def _checked(self, logits, rows):
        """The logits in float32."""
        logits = ops.convert_to_tensor(logits)
        shape, dtype = _kind(logits)
        of_rows = shapes.may_equal(shape, (rows, None)) and shape[1] is not None
        if not of_rows or "float" not in dtype:
            raise ValueError(
                "`step` must return logits (R, V), floats for each of R rows and V tokens, here "
                f"({rows}, V). Received: shape={shape}, dtype={dtype}"
            )
        beyond = [stop for stop in self.stop_tokens if not 0 <= stop < shape[1]]
        if beyond:
            raise ValueError(
                f"`stop_tokens` must be tokens of the vocabulary, 0 to {shape[1] - 1}. "
                f"Received: {beyond}"
            )
        return ops.cast(logits, "float32")

    def _same(self, cache):
        """The leaves of a cache, which must match the first one."""
        try:
            keras.tree.assert_same_structure(self.cache, cache)
        except (ValueError, TypeError) as error:
            raise ValueError(
                "`step` must return a cache of the structure that it was given. "
                f"Received another: {error}"
            ) from error
        leaves = tuple(map(ops.convert_to_tensor, self._leaves(cache)))
        for old, new in zip(self.leaves, leaves, strict=True):
            expected, received = _kind(old), _kind(new)
            if expected[1] != received[1] or not shapes.may_equal(expected[0], received[0]):
                raise ValueError(
                    "`step` must return a cache of the shapes and dtypes that it was given, "
                    f"here {expected}. Received: {received}"
                )
        return leaves


def normalized(logits):
    """Logits (R, V) minus the best of their row, and their log-sum-exp (R, 1).

    It is −inf if all tokens of a row are forbidden, and NaN if a logit is NaN or +inf.
    """
    # Of the logits: XLA's maximum and exponential on CPUs may turn NaN into a number.
    unknown = ops.any(ops.isnan(logits), axis=-1, keepdims=True)
    best = ops.max(logits, axis=-1, keepdims=True)
    logits = logits - ops.where(ops.isfinite(best), best, 0.0)
    norm = ops.log(ops.sum(ops.exp(logits), axis=-1, keepdims=True))
    lost = ops.logical_or(unknown, norm == -NONE)
    return logits, ops.where(lost, float("nan"), norm)


def _kind(tensor):
    return tuple(tensor.shape), keras.backend.standardize_dtype(tensor.dtype)


def _integers(name, given, rank, meaning):
    """An argument as a tensor of int32 with so many axes."""
    tensor = ops.convert_to_tensor(given)
    shape, dtype = _kind(tensor)
    if "int" not in dtype:
        raise TypeError(f"`{name}` must be integers. Received: dtype {dtype}")
    if len(shape) != rank:
        raise ValueError(f"`{name}` must be {meaning}. Received: {name}.shape={shape}")
    return ops.cast(tensor, "int32")


def _check_integers(name, values):
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"`{name}` must be integers. Received: {value!r}")
        shapes.check_range(name, value, "int32")


def generate(steps, choose, max_tokens, pad_token, *numbers):
    """Steps until every row has a stop token or `max_tokens` tokens, which `choose` chooses.

    It is given the step, float32 logits (B, V), the tokens so far, (max_tokens, B), their number,
    (B,), and `numbers`, which are arrays for the whole loop.
    """

    def unfinished(t, tokens, leaves, finished, *_):
        return ops.logical_and(t < max_tokens, ops.logical_not(ops.all(finished)))

    def advance(constants, t, tokens, leaves, finished, lengths, history, log_probs):
        memory, prompt, numbers = constants
        logits, leaves = steps(tokens, leaves, memory)
        allowed = logits
        if steps.rules is not None:
            allowed = steps.rules(t, logits, ops.transpose(history), prompt)
        # A finished row keeps stepping, with tokens that are always in the vocabulary.
        tokens = ops.cast(choose(t, allowed, history, lengths, *numbers), "int32")
        logits, norm = normalized(logits)
        log_prob = (ops.take_along_axis(logits, tokens[:, None], axis=1) - norm)[:, 0]
        stuck = norm[:, 0] == NONE
        if steps.rules is not None:
            stuck = ops.logical_or(stuck, ops.max(allowed, axis=-1) == NONE)
            known = ops.logical_not(ops.isnan(norm[:, 0]))
            certain = ops.logical_and(steps.rules.forced(t), known)
            log_prob = ops.where(certain, 0.0, log_prob)
        log_prob = ops.where(finished, 0.0, ops.where(stuck, NONE, log_prob))
        finished = ops.logical_or(finished, stuck)
        at = (t, ops.zeros_like(t))
        history = ops.slice_update(history, at, ops.where(finished, pad_token, tokens)[None])
        log_probs = ops.slice_update(log_probs, at, log_prob[None])
        lengths = lengths + ops.cast(ops.logical_not(finished), "int32")
        finished = ops.logical_or(finished, steps.stops(tokens))
        return t + 1, tokens, leaves, finished, lengths, history, log_probs

    # Steps are on axis 0, so that each step writes contiguous memory.
    start = (
        ops.convert_to_tensor(0, dtype="int32"),
        steps.tokens,
        steps.leaves,
        ops.zeros((steps.rows,), dtype="bool"),
        ops.zeros((steps.rows,), dtype="int32"),
        ops.full((max_tokens, steps.rows), pad_token, dtype="int32"),
        ops.zeros((max_tokens, steps.rows), dtype="float32"),
    )
    constants = (steps.memory, steps.prompt, numbers)
    *_, lengths, history, log_probs = backend.while_loop(unfinished, advance, start, constants)
    scores = ops.sum(log_probs, axis=0)
    check_found(scores)
    return Generated(ops.transpose(history), lengths, ops.transpose(log_probs), scores)


# The `notes` of a program that is being traced: whether rows are lost, unknown yet, with the trace.
_tracing = threading.local()


def check_found(scores):
    """Raises if a row is lost: its scores are NaN.

    At once if they are known; after each run of the program if a `compiled` one is being traced.
    Other programs, and loops within a program, cannot raise.
    """
    _check(ops.any(ops.isnan(scores)))


def _check(lost):
    known = shapes.visible_values(lost)
    if known is None:
        getattr(_tracing, "notes", []).append((backend.trace_id(), lost))
    elif known:
        raise ValueError(
            "`step` must return logits without NaN and +inf. Received such logits: a cache has "
            "fewer slots than a row has tokens, those of the prompt and `max_tokens` more, as "
            "`make_cache(batch_size, length)` or `start(…, max_tokens)` was told; a token is not "
            "in the vocabulary; or weights or states are NaN"
        )


Result = TypeVar("Result")


def compiled(function: Callable[..., Result], layer: keras.Layer) -> Callable[..., Result]:
    """A function of arrays as one compiled program for each of their shapes and dtypes.

    XLA on TensorFlow, `jax.jit` on JAX. On PyTorch the function itself, without gradients, in
    which a step of each generation loop is recorded once, and replayed. The program reads the
    variables at every call: weights trained or loaded since apply without recompilation.
    Variables that it assigns, such as the state of a `keras.random.SeedGenerator`, are updated.

    Args:
        function: from tensors to tensors, either in any nested structure, such as a call of
            `greedy`, `sample` or `beam_search` with all computations before it.
        layer: the built `keras.Layer`, or model, that `function` calls. On JAX, variables of
            others that it reads are found by tracing it twice; on PyTorch, a step that reads
            such variables, or closes over other arrays, is recorded in every call.

    Returns:
        A function with the same arguments (NumPy arrays are accepted) and results.

    Raises:
        TypeError: `function` is not callable, or `layer` no layer.
        ValueError: `layer` is not built; or, after the program has run, a generated row is
            lost, as described in `greedy`.

    Warns:
        UserWarning: on PyTorch, a step reads values of tensors, so that it cannot be recorded.

    >>> import keras
    >>> from keras_attention import generation
    >>> model = keras.Sequential([keras.layers.Embedding(10, 8), keras.layers.Dense(10)])
    >>> model.build((None,))
    >>> def step(tokens, cache):
    ...     return model(tokens), cache
    >>> write = generation.compiled(
    ...     lambda tokens: generation.greedy(step, tokens, (), max_tokens=5), model
    ... )
    >>> write([1, 2, 3]).tokens.shape
    (3, 5)
    """
    if not callable(function):
        raise TypeError(f"`function` must be a function of arrays. Received: {function!r}")
    if not isinstance(layer, keras.Layer):
        raise TypeError(f"`layer` must be a Keras layer or model. Received: {layer!r}")
    if not layer.built:
        raise ValueError(
            f"`layer` must be built, so that its variables exist. Received: {layer!r}, not built"
        )

    def noted(*arrays):
        """The result, and whether rows are lost, of each loop."""
        outer = getattr(_tracing, "notes", [])
        _tracing.notes = []
        try:
            outputs, trace = function(*arrays), backend.trace_id()
            # Values computed in a loop inside the function do not leave the loop.
            return outputs, [lost for origin, lost in _tracing.notes if origin == trace]
        finally:
            _tracing.notes = outer

    program = backend.compile(noted, layer)

    def call(*arrays):
        outputs, found = program(*keras.tree.map_structure(ops.convert_to_tensor, arrays))
        for lost in found:
            _check(lost)
        return outputs

    return call
