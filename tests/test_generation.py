"""Generation: against loops over lists in float64, against all hypotheses there are, by laws."""

import functools
import itertools

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_attention import AttentionCell, TransformerBlock, generation
from keras_attention.generation import sampling

ops = keras.ops
ON_JAX = keras.config.backend() == "jax"
STATES = 61
PAD = -1
# Most tests ask for these sizes, so that few loops must be traced.
TOKENS = [1, 5, 3]
VOCABULARY, LENGTH = 6, 7


def numpy(structure):
    return keras.tree.map_structure(
        lambda tensor: np.asarray(ops.convert_to_numpy(tensor)), structure
    )


def random_table(vocabulary=VOCABULARY, seed=0, scale=2.0):
    """Logits of each state of a toy model."""
    shape = (STATES, vocabulary)
    return (scale * np.random.default_rng(seed).normal(size=shape)).astype("float32")


def next_state(state, token, offset):
    """The state depends on all that came before, so a wrong beam's state shows."""
    return (state * 7 + token * 3 + offset + 1) % STATES


def toy_step(table, calls=None):
    """A model whose cache is a state and the tokens it saw, and whose memory is an offset."""

    def step(tokens, cache, memory):
        if calls is not None:
            calls.append(tuple(tokens.shape))
        state = next_state(cache["state"], tokens, memory["offset"])
        seen = ops.concatenate([cache["seen"][0][:, 1:], tokens[:, None]], axis=1)
        return ops.take(table, state, axis=0), {"state": state, "seen": (seen, None)}

    return step


def toy_start(tokens):
    """A cache and a memory, in which rows differ."""
    rows = len(tokens)
    cache = {"state": np.arange(rows, dtype="int32"), "seen": (np.zeros((rows, 2), "int32"), None)}
    return cache, {"offset": (5 * np.arange(rows)).astype("int32"), "mask": None}


def log_probabilities(table, state):
    logits = table[state].astype("float64")
    return logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()


@functools.cache
def program(method, **options):
    def run(table, tokens, cache, memory):
        return getattr(generation, method)(
            toy_step(table), tokens, cache, memory, pad_token=PAD, **options
        )

    # JAX would compile its loop in each call, and TensorFlow take long for each operation.
    if ON_JAX:
        import jax

        return jax.jit(run)
    if keras.config.backend() == "tensorflow":
        import tensorflow as tf

        return tf.function(run, autograph=False)
    return run


def toy(method, table, tokens, **options):
    """What a way of generating gives with the toy model, as NumPy arrays."""
    arrays = (table, np.array(tokens, "int32"), *toy_start(tokens))
    arrays = keras.tree.map_structure(
        lambda leaf: None if leaf is None else ops.convert_to_tensor(leaf), arrays
    )
    return generation.Generated(*numpy(tuple(program(method, **options)(*arrays))))


def greedy_by_lists(table, token, row, max_tokens, stop_tokens, penalty=1.0):
    state, found, gains = row, [], []
    while len(found) < max_tokens and (not found or found[-1] not in stop_tokens):
        state = next_state(state, token, 5 * row)
        logits = table[state].astype("float64")
        for seen in set(found):
            logits[seen] = logits[seen] / penalty if logits[seen] > 0 else logits[seen] * penalty
        token = int(np.argmax(logits))
        gains.append(log_probabilities(table, state)[token])
        found.append(token)
    return found, gains


def beams_by_lists(table, token, row, num_beams, max_tokens, alpha, stop_tokens):
    """Hypotheses [(score, tokens, gains)], best first, of a search that never stops early."""

    def score(total, tokens):
        return total / ((5 + len(tokens)) / 6) ** alpha

    start = next_state(row, token, 5 * row)
    live, found = [(0.0, (), (), start)], []
    for _ in range(max_tokens):
        ranked = []
        for total, tokens, gains, state in live:
            for new, gain in enumerate(log_probabilities(table, state)):
                after = next_state(state, new, 5 * row)
                ranked.append((total + gain, (*tokens, new), (*gains, gain), after))
        ranked.sort(key=lambda beam: -beam[0])
        ended = [beam for beam in ranked[:num_beams] if beam[1][-1] in stop_tokens]
        found += [(score(total, tokens), tokens, gains) for total, tokens, gains, _ in ended]
        live = [beam for beam in ranked if beam[1][-1] not in stop_tokens][:num_beams]
    found += [(score(total, tokens), tokens, gains) for total, tokens, gains, _ in live]
    return sorted(found, key=lambda hypothesis: -hypothesis[0])


def all_hypotheses(table, token, row, max_tokens, alpha, stop_tokens):
    """Every hypothesis there is, best first."""
    found = []
    vocabulary = table.shape[1]
    for length in range(1, max_tokens + 1):
        for tokens in itertools.product(range(vocabulary), repeat=length):
            ends = tokens[-1] in stop_tokens
            if set(tokens[:-1]) & set(stop_tokens) or not (ends or length == max_tokens):
                continue
            state, gains = row, []
            for before, new in zip((token, *tokens), tokens, strict=False):
                state = next_state(state, before, 5 * row)
                gains.append(log_probabilities(table, state)[new])
            found.append((sum(gains) / ((5 + length) / 6) ** alpha, tokens, tuple(gains)))
    return sorted(found, key=lambda hypothesis: -hypothesis[0])


def padded(values, length, value):
    return np.array([*values, *[value] * (length - len(values))])


def assert_hypotheses(found, row, expected, max_tokens):
    """A row of what `beam_search` found is the expected list's beginning."""
    for place in range(found.scores.shape[1]):
        if place >= len(expected):
            assert found.scores[row, place] == -np.inf
            assert found.lengths[row, place] == 0
            assert (found.tokens[row, place] == PAD).all()
            assert (found.log_probabilities[row, place] == 0).all()
            continue
        score, tokens, gains = expected[place]
        np.testing.assert_allclose(found.scores[row, place], score, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(found.tokens[row, place], padded(tokens, max_tokens, PAD))
        assert found.lengths[row, place] == len(tokens)
        np.testing.assert_allclose(
            found.log_probabilities[row, place], padded(gains, max_tokens, 0), rtol=1e-4, atol=1e-5
        )


# Greedy


@pytest.mark.parametrize("stop_tokens", [(), (0, 2)])
def test_greedy_is_the_loop_over_lists(stop_tokens):
    for seed in range(3):
        table = random_table(seed=seed)
        found = toy("greedy", table, TOKENS, max_tokens=LENGTH, stop_tokens=stop_tokens)
        assert [array.dtype.name for array in found] == ["int32", "int32", "float32", "float32"]
        for row, token in enumerate(TOKENS):
            expected, gains = greedy_by_lists(table, token, row, LENGTH, stop_tokens)
            np.testing.assert_array_equal(found.tokens[row], padded(expected, LENGTH, PAD))
            assert found.lengths[row] == len(expected)
            np.testing.assert_allclose(
                found.log_probabilities[row], padded(gains, LENGTH, 0), rtol=1e-4, atol=1e-6
            )
            np.testing.assert_allclose(found.scores[row], sum(gains), rtol=1e-5)
        assert bool(stop_tokens) == bool((found.lengths < LENGTH).any())


@pytest.mark.skipif(ON_JAX, reason="JAX traces a loop once")
@pytest.mark.parametrize("method", ["greedy", "sample"])
def test_the_loop_ends_when_every_row_has(method):
    table = np.full((STATES, 4), -9.0, "float32")
    table[:, 2] = 9.0
    calls, (cache, memory) = [], toy_start([0, 1])
    run = getattr(generation, method)
    step = toy_step(ops.convert_to_tensor(table), calls)
    seed = {"seed": 0} if method == "sample" else {}
    run(step, [0, 1], cache, memory, max_tokens=50, stop_tokens=(2,), **seed)
    assert calls == [(2,)]


def test_what_is_not_to_come_has_logits_of_minus_infinity():
    table = random_table()
    table[:, :4] = -np.inf
    found = toy("greedy", table, TOKENS, max_tokens=LENGTH, stop_tokens=())
    assert (found.tokens >= 4).all()
    assert np.isfinite(found.log_probabilities).all()
    found = toy("sample", table, [0] * 50, max_tokens=4, temperature=5.0, seed=0)
    assert (found.tokens >= 4).all()
    assert (found.tokens == 4).any() and (found.tokens == 5).any()
    found = toy("beam_search", table, TOKENS, max_tokens=2, num_beams=4, num_return=4)
    assert (found.tokens >= 4).all()
    assert np.isfinite(found.scores).all()


# Beam search


def beams(table, num_beams, stop_tokens, alpha, num_return=None):
    return toy(
        "beam_search",
        table,
        TOKENS,
        num_beams=num_beams,
        num_return=num_return or num_beams,
        max_tokens=LENGTH,
        length_penalty=alpha,
        stop_tokens=stop_tokens,
    )


@pytest.mark.parametrize(
    ("num_beams", "stop_tokens", "alpha"),
    [(1, (0, 2), 0.0), (2, (0,), 1.0), (4, (0, 2), 0.6), (5, (), 2.0)],
)
def test_beam_search_is_the_search_over_lists(num_beams, stop_tokens, alpha):
    for seed in range(3):
        table = random_table(seed=seed, scale=1.5)
        found = beams(table, num_beams, stop_tokens, alpha)
        for row, token in enumerate(TOKENS):
            expected = beams_by_lists(table, token, row, num_beams, LENGTH, alpha, stop_tokens)
            assert_hypotheses(found, row, expected, LENGTH)


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    scale=st.floats(0.1, 5.0),
    # Few combinations of what shapes depend on: JAX compiles each of them.
    sizes=st.sampled_from(
        [(2, 4, 2, 16, (0,), 2.0), (3, 3, 3, 27, (1,), 0.0), (3, 2, 5, 9, (1, 0), 0.7)]
    ),
)
def test_with_enough_beams_it_is_exhaustive_search(seed, scale, sizes):
    vocabulary, max_tokens, num_return, num_beams, stop, alpha = sizes
    table, tokens = random_table(vocabulary, seed, scale), [1, 0]
    found = toy(
        "beam_search",
        table,
        tokens,
        num_beams=num_beams,
        num_return=num_return,
        max_tokens=max_tokens,
        length_penalty=alpha,
        stop_tokens=stop,
    )
    for row, token in enumerate(tokens):
        expected = all_hypotheses(table, token, row, max_tokens, alpha, stop)
        scores = padded([e[0] for e in expected[:num_return]], num_return, -np.inf)
        np.testing.assert_allclose(found.scores[row], scores, rtol=1e-4, atol=1e-5)
        apart = np.abs(np.diff([e[0] for e in expected[: num_return + 1]])) > 1e-4
        if apart.all():
            assert_hypotheses(found, row, expected, max_tokens)


def test_one_beam_without_length_penalty_is_greedy():
    for seed in range(5):
        table = random_table(seed=seed)
        greedy = toy("greedy", table, TOKENS, max_tokens=LENGTH, stop_tokens=(0, 2))
        for one, other in zip(beams(table, 1, (0, 2), 0.0), greedy, strict=True):
            np.testing.assert_allclose(one[:, 0], other, rtol=1e-5)


def test_fewer_returned_are_the_first_of_more():
    for seed in range(3):
        table = random_table(seed=seed)
        four, two = (beams(table, 4, (0, 2), 0.6, num_return=count) for count in (4, 2))
        assert (np.diff(four.scores, axis=1) <= 0).all()
        for one, other in zip(two, four, strict=True):
            np.testing.assert_array_equal(one, other[:, :2])


@pytest.mark.skipif(ON_JAX, reason="JAX traces a loop once")
@pytest.mark.parametrize(("alpha", "steps"), [(0.0, 1), (1.0, 3)])
def test_it_stops_when_no_live_beam_can_win_and_not_before(alpha, steps):
    table = np.log(np.array([[0.6, 0.4, 1e-9]] + [[1e-9, 0.25, 0.75]] * 9, "float32"))
    # With α = 1, a live beam after n steps can reach (log 0.4 + (n − 1) log 0.75) / 2.5, which is
    # −0.37, −0.48, −0.60; "stop" at once has log 0.6 = −0.51.
    calls = []

    def step(tokens, cache):
        calls.append(1)
        return ops.take(table, cache, axis=0), cache + 1

    found = generation.beam_search(
        step,
        [0],
        np.zeros(1, "int32"),
        num_beams=1,
        max_tokens=10,
        length_penalty=alpha,
        stop_tokens=(0,),
    )
    assert len(calls) == steps
    assert int(found.lengths[0, 0]) == 1


def test_a_long_hypothesis_may_overtake_a_finished_one():
    """A bound at the present length would stop too soon, after the first step."""
    table = np.full((STATES, 3), -30.0, "float32")
    cache = np.zeros(1, "int32")
    table[0] = np.log([0.5, 0.5 - 1e-6, 1e-6])
    table[1:9, 2] = 0.0
    table[9, 0] = 0.0

    def step(tokens, cache):
        return ops.take(table, cache, axis=0), cache + 1

    def run(alpha):
        found = generation.beam_search(
            step, [0], cache, num_beams=1, max_tokens=10, length_penalty=alpha, stop_tokens=(0,)
        )
        return int(ops.convert_to_numpy(found.lengths)[0, 0])

    assert run(0.0) == 1
    assert run(1.0) == 10


# What cannot come, what is no number


def of_table(table):
    """A model whose next logits depend on the last token alone."""
    table = ops.convert_to_tensor(np.array(table, "float32"))

    def step(tokens, cache):
        return ops.take(table, tokens, axis=0), cache

    return step


# 0 and 1 follow each other freely; 2 may not come, and nothing follows it.
FORBIDDEN = [[0, -1, -np.inf], [0.5, 0, -np.inf], [-np.inf] * 3]


@pytest.mark.parametrize("num_beams", [2, 9])
def test_beams_without_a_hypothesis_spoil_no_others(num_beams):
    found = generation.beam_search(
        of_table(FORBIDDEN), [0, 2], (), num_beams=num_beams, max_tokens=3, length_penalty=0.0
    )
    found = numpy(tuple(found))
    np.testing.assert_allclose(found[3], [[-3 * np.log1p(np.exp(-1))], [-np.inf]], rtol=1e-5)
    assert found[0].tolist() == [[[0, 0, 0]], [[0, 0, 0]]]
    assert found[1].tolist() == [[3], [0]]


def test_a_hypothesis_that_cannot_go_on_is_none():
    """1 is likelier than 2, and a dead end."""
    table = [[-9, 5, 0], [-np.inf] * 3, [0, -np.inf, 9]]
    found = generation.beam_search(
        of_table(table), [0], (), num_beams=2, num_return=2, max_tokens=2
    )
    tokens, lengths, gains, scores = numpy(tuple(found))
    assert tokens.tolist() == [[[2, 2], [2, 0]]]
    assert lengths.tolist() == [[2, 2]]
    assert np.isfinite(gains).all() and np.isfinite(scores).all()


@pytest.mark.parametrize("method", ["greedy", "sample"])
def test_a_row_that_cannot_go_on_ends(method):
    table = [[-9, 5, 5], [-np.inf] * 3, [-np.inf, -np.inf, 0]]
    options = {"top_p": 0.9, "min_p": 0.1, "seed": 0} if method == "sample" else {}
    run = getattr(generation, method)
    found = run(of_table(table), [0, 1, 2], (), max_tokens=3, pad_token=PAD, **options)
    tokens, lengths, gains, scores = numpy(tuple(found))
    assert tokens[1:].tolist() == [[PAD] * 3, [2, 2, 2]]
    assert lengths[1:].tolist() == [0, 3]
    assert gains[1:].tolist() == [[-np.inf, 0, 0], [0, 0, 0]]
    assert scores[1:].tolist() == [-np.inf, 0]
    if method == "greedy":  # the first of two equals
        assert tokens[0].tolist() == [1, PAD, PAD]
        assert lengths[0] == 1 and scores[0] == -np.inf
        np.testing.assert_allclose(gains[0], [-np.log(2), -np.inf, 0], rtol=1e-5)


@pytest.mark.parametrize("size", [5, 50, 3000])
def test_of_equals_greedy_takes_the_first(size):
    logits = np.zeros(size, "float32")
    logits[: size // 2] = -1
    found = generation.greedy(fixed_logits(logits), [0], (), max_tokens=2)
    assert numpy(found.tokens).tolist() == [[size // 2] * 2]


def test_no_digits_are_lost_to_what_all_logits_share():
    logits = np.array([0.5, 0.25, 0.0], "float32")
    for method, options in (("greedy", {}), ("beam_search", {"num_beams": 1, "num_return": None})):
        near, far = (
            getattr(generation, method)(
                fixed_logits(logits + shift), [0], (), max_tokens=3, **options
            )
            for shift in (np.float32(0), np.float32(2**18))
        )
        for one, other in zip(numpy(tuple(near)), numpy(tuple(far)), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6)


WAYS = {
    "greedy": {},
    "sample": {"seed": 0, "top_k": 2},
    "beam_search": {"num_beams": 2, "num_return": None},
}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("method", WAYS)
def test_a_cache_that_is_too_short_is_an_error_after_the_loop(method, compiled):
    block = TransformerBlock(8, 2, causal=True)
    block.build((None, None, 4))
    table = np.random.default_rng(15).normal(size=(5, 4)).astype("float32")

    def write(tokens, slots=6, **options):
        def step(tokens, cache):
            x, cache = block(ops.take(table, tokens, axis=0)[:, None], cache=cache)
            return ops.matmul(x[:, 0], ops.transpose(table)), cache

        cache = block.make_cache(2, slots)
        found = getattr(generation, method)(
            step, tokens, cache, max_tokens=6, **options, **WAYS[method]
        )
        return found.tokens

    def run(**options):
        function = functools.partial(write, **options)
        if compiled:
            function = generation.compiled(function, block)
        return numpy(function(ops.convert_to_tensor(np.array([1, 2], "int32"))))

    assert run().shape == (2, 6)
    # Where the loop runs as Python, the cache itself says so.
    eager = keras.config.backend() == "torch" or not (compiled or ON_JAX)
    message = "cannot hold more tokens" if eager else "without NaN"
    with pytest.raises(ValueError, match=message):
        run(slots=5)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("method", WAYS)
def test_logits_that_are_no_numbers_are_an_error(method, bad):
    table = random_table()
    table[3, 1] = bad
    states = next_state(np.arange(3), np.array(TOKENS), 5 * np.arange(3))
    with pytest.raises(ValueError, match=r"without NaN and \+inf\. Received such"):
        generation_of(method, np.full_like(table, bad))
    # A row that has ended, or that meets no such state, is not concerned.
    assert 3 not in states
    found = generation_of(method, np.where(np.arange(6) == 2, 9, table), stop_tokens=(2,))
    assert np.isfinite(numpy(found.scores)).all()


def generation_of(method, table, **options):
    return getattr(generation, method)(
        toy_step(ops.convert_to_tensor(table)),
        TOKENS,
        *toy_start(TOKENS),
        max_tokens=2,
        **options,
        **WAYS[method],
    )


def test_errors_of_inner_loops_do_not_leave_a_program():
    """A search within a loop of the user's own runs, though nothing can raise for it."""
    layer = keras.layers.Dense(1)
    layer.build((1, 1))

    def twice(logits):
        def search(n, sums):
            found = generation.greedy(lambda t, c: (logits + 0.0, c), [0], (), max_tokens=1)
            return sums + found.scores

        return ops.fori_loop(0, 2, search, ops.zeros(1))

    logits = np.zeros((1, 2), "float32")
    found = generation.compiled(twice, layer)(logits)
    np.testing.assert_allclose(numpy(found), [-2 * np.log(2)], rtol=1e-5)


def test_errors_of_a_program_within_a_program_are_raised():
    layer = keras.layers.Dense(1)
    layer.build((1, 1))

    def search(logits):
        return generation.greedy(lambda t, c: (logits + 0.0, c), [0], (), max_tokens=1).tokens

    inner = generation.compiled(search, layer)
    outer = generation.compiled(lambda logits: inner(logits) + 1, layer)
    assert numpy(outer(np.zeros((1, 3), "float32"))).tolist() == [[1]]
    for _ in range(2):
        with pytest.raises(ValueError, match="without NaN"):
            outer(np.full((1, 3), np.nan, "float32"))
    assert numpy(outer(np.zeros((1, 3), "float32"))).tolist() == [[1]]


@pytest.mark.skipif(not ON_JAX, reason="a setting of JAX")
@pytest.mark.parametrize("method", WAYS)
def test_with_64_bits(method):
    import jax

    table = random_table(4)
    expected = numpy(tuple(generation_of(method, table)))
    with jax.enable_x64(True):
        found = numpy(tuple(generation_of(method, table)))
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=1e-6)


# Rows, dtypes, compilation


def test_the_best_hypothesis_alone_has_the_shapes_of_greedy():
    options = {"num_beams": 3, "max_tokens": LENGTH, "stop_tokens": (0, 2)}
    one, best = (
        toy("beam_search", random_table(), TOKENS, num_return=n, **options) for n in (1, None)
    )
    for some, alone in zip(one, best, strict=True):
        np.testing.assert_array_equal(some[:, 0], alone)
    greedy = toy("greedy", random_table(), TOKENS, max_tokens=LENGTH, stop_tokens=(0, 2))
    assert [a.shape for a in best] == [a.shape for a in greedy] == [(3, 7), (3,), (3, 7), (3,)]
    assert [a.dtype for a in best] == [a.dtype for a in greedy]


@pytest.mark.parametrize("method", WAYS)
def test_no_rows_give_none(method):
    options = {"max_tokens": 4, "stop_tokens": (2,), **WAYS[method]}
    found = getattr(generation, method)(
        of_table(random_table(5)), np.zeros(0, "int32"), np.zeros((0, 3), "float32"), **options
    )
    assert [tuple(array.shape) for array in found] == [(0, 4), (0,), (0, 4), (0,)]


METHODS = {
    "greedy": {"max_tokens": LENGTH, "stop_tokens": (0, 2)},
    "beam_search": {
        "num_beams": 4,
        "num_return": 4,
        "max_tokens": LENGTH,
        "length_penalty": 0.6,
        "stop_tokens": (0, 2),
    },
}


@pytest.mark.parametrize("method", METHODS)
def test_a_row_gives_what_it_gives_alone(method):
    table, run = random_table(), program(method, **METHODS[method])
    cache, memory = toy_start(TOKENS)

    def of(rows):
        arrays = (np.array(TOKENS, "int32"), cache, memory)
        return numpy(
            tuple(
                run(
                    ops.convert_to_tensor(table),
                    *keras.tree.map_structure(
                        lambda x: None if x is None else ops.convert_to_tensor(x[rows]), arrays
                    ),
                )
            )
        )

    together = of(slice(None))
    assert len(np.unique(together[1])) > 1
    for row in range(len(TOKENS)):
        for one, all_rows in zip(of(slice(row, row + 1)), together, strict=True):
            np.testing.assert_allclose(one[0], all_rows[row], rtol=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_half_precision_logits_are_summed_in_float32(method):
    table = ops.cast(random_table(scale=4), "bfloat16")
    exact = numpy(ops.cast(table, "float32"))
    half, full = (toy(method, array, TOKENS, **METHODS[method]) for array in (table, exact))
    assert half.log_probabilities.dtype == half.scores.dtype == "float32"
    for one, other in zip(half, full, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("greedy", {}),
        (
            "sample",
            {"seed": 3, "top_k": 4, "top_p": 0.9, "min_p": 0.1, "repetition_penalty": 1.5},
        ),
        ("beam_search", {"num_beams": 3, "num_return": 3}),
    ],
)
def test_compiled_gives_what_eager_gives(method, options):
    table, tokens = random_table(8, seed=7), np.array([0, 1, 2, 3], "int32")
    options = {"max_tokens": 6, "stop_tokens": (5,), **options}

    def run(table, tokens, state):
        cache, memory = toy_start(tokens.shape[0] * [0])
        return getattr(generation, method)(
            toy_step(table), tokens, {**cache, "state": state}, memory, **options
        )

    state = np.arange(4, dtype="int32")
    layer = keras.layers.Dense(1)
    layer.build((1, 1))
    eager = run(*map(ops.convert_to_tensor, (table, tokens, state)))
    compiled = generation.compiled(run, layer)(table, tokens, state)
    assert isinstance(compiled, generation.Generated)
    for one, other in zip(numpy(tuple(compiled)), numpy(tuple(eager)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


# Sampling


def fixed_logits(logits):
    """A model that always gives these logits."""

    def step(tokens, cache):
        return ops.broadcast_to(logits, (tokens.shape[0], len(logits))), cache

    return step


def kept(logits, temperature=1.0, top_k=None, top_p=None, min_p=None):
    """The distribution that is drawn from, by its definition."""
    logits = logits.astype("float64") / temperature
    chances = np.exp(logits - logits.max())
    chances /= chances.sum()
    order = np.argsort(-chances, kind="stable")
    if top_k is not None:
        chances[order[top_k:]] = 0
        chances /= chances.sum()
    if top_p is not None:
        count = 1
        while chances[order[:count]].sum() < top_p and count < len(order):
            count += 1
        chances[chances < chances[order[count - 1]]] = 0
        chances /= chances.sum()
    if min_p is not None:
        chances[chances < min_p * chances.max()] = 0
    return chances / chances.sum()


def assert_drawn_from(tokens, chances):
    """Chi-square, at five standard deviations; and nothing that cannot be."""
    counts = np.bincount(tokens, minlength=len(chances))
    expected = chances * len(tokens)
    assert counts[chances == 0].sum() == 0
    rare = expected < 5  # Chi-square wants some of each: these count as one.
    counts = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], max(expected[rare].sum(), 1e-9))
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedom = len(counts) - 1
    assert statistic <= freedom + 5 * np.sqrt(2 * freedom) + 5, (counts, expected)


LOGITS = np.random.default_rng(8).normal(size=11).astype("float32") * 1.5


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 3.0},
        {"top_k": 4},
        {"top_k": 100},
        {"top_p": 0.01},
        {"top_p": 0.8},
        {"top_p": 1.0},
        {"min_p": 0.2},
        {"min_p": 1.0},
        {"top_k": 6, "top_p": 0.7, "temperature": 2.0},
        {"top_k": 8, "top_p": 0.95, "min_p": 0.3, "temperature": 4.0},
    ],
    ids=str,
)
def test_samples_have_the_distribution_by_definition(options):
    rows = 4000
    found = generation.sample(fixed_logits(LOGITS), [0] * rows, (), max_tokens=2, seed=1, **options)
    tokens = numpy(found.tokens)
    chances = kept(LOGITS, **options)
    assert_drawn_from(tokens[:, 0], chances)
    # Two draws of a row have nothing to do with each other.
    pairs = np.outer(chances, chances).ravel()
    assert_drawn_from(tokens[:, 0] * len(LOGITS) + tokens[:, 1], pairs)
    # Reported is the model's own distribution.
    own = np.log(kept(LOGITS))
    np.testing.assert_allclose(numpy(found.log_probabilities), own[tokens], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(numpy(found.scores), own[tokens].sum(1), rtol=1e-4, atol=1e-5)


@functools.cache
def least_of_nucleus():
    layer = keras.layers.Dense(1)
    layer.build((1, 1))
    return generation.compiled(sampling._least_of_nucleus, layer)


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    scale=st.floats(0.01, 20),
    top_p=st.floats(0.01, 0.999),
    rounded=st.booleans(),
)
def test_the_nucleus_is_the_one_of_sorting(seed, scale, top_p, rounded):
    logits = scale * np.random.default_rng(seed).normal(size=(3, 200))
    logits = np.round(logits, 1) if rounded else logits  # with ties
    logits = (logits - logits.max(axis=-1, keepdims=True)).astype("float32")
    least = numpy(least_of_nucleus()(logits, np.float32(top_p)))
    for row in range(3):
        chances = np.exp(logits[row].astype("float64"))
        sums = np.sort(chances)[::-1].cumsum() / chances.sum()
        if np.abs(sums - top_p).min() > 1e-5:  # else rounding decides
            expected = kept(logits[row], top_p=top_p) > 0
            np.testing.assert_array_equal(logits[row] >= least[row], expected)


def test_draws_among_many_and_never_what_has_no_mass():
    random = np.random.default_rng(9)
    masses = random.gamma(0.5, size=1000) * (random.random(1000) < 0.3)
    masses = masses.astype("float32")
    for draws in np.split(random.random((2, 2, 20000)).astype("float32"), 2):
        rows = ops.convert_to_tensor(np.broadcast_to(masses, (20000, 1000)).copy())
        tokens = numpy(sampling._drawn(rows, ops.convert_to_tensor(draws[0])))
        assert_drawn_from(tokens, masses / masses.sum())


@pytest.mark.parametrize("number", [0.0, 0.5, 1 - 2**-24])
@pytest.mark.parametrize("size", [1, 2, 3, 10])
def test_the_ends_of_a_draw_are_within_what_has_mass(size, number):
    for place in range(size):
        masses = np.zeros((1, size), "float32")
        masses[0, place] = 1e-30
        numbers = np.full((2, 1), number, "float32")
        drawn = sampling._drawn(ops.convert_to_tensor(masses), ops.convert_to_tensor(numbers))
        assert int(drawn[0]) == place


@pytest.mark.parametrize("penalty", [1.3, 0.5])
def test_repetition_penalty_by_definition(penalty):
    options = {"top_k": 1, "repetition_penalty": penalty, "stop_tokens": (2,), "seed": 0}
    for seed in range(3):
        table = random_table(seed=seed, scale=1.0)
        found = toy("sample", table, TOKENS, max_tokens=LENGTH, **options)
        for row, token in enumerate(TOKENS):
            expected, gains = greedy_by_lists(table, token, row, LENGTH, (2,), penalty)
            np.testing.assert_array_equal(found.tokens[row], padded(expected, LENGTH, PAD))
            np.testing.assert_allclose(
                found.log_probabilities[row], padded(gains, LENGTH, 0), rtol=1e-4, atol=1e-6
            )


@pytest.mark.parametrize("temperature", [1e-37, 1e-60])
def test_a_tiny_temperature_is_greedy_and_finite(temperature):
    table, options = random_table(), {"max_tokens": LENGTH, "stop_tokens": (0, 2)}
    cold = toy("sample", table, TOKENS, temperature=temperature, top_p=0.5, seed=0, **options)
    greedy = toy("greedy", table, TOKENS, **options)
    np.testing.assert_array_equal(cold.tokens, greedy.tokens)
    assert np.isfinite(cold.log_probabilities).all()


def test_seeds():
    def run(seed):
        found = generation.sample(
            fixed_logits(np.zeros(50, "float32")), [0] * 8, (), max_tokens=4, seed=seed
        )
        return numpy(found.tokens)

    np.testing.assert_array_equal(run(3), run(3))
    generator = keras.random.SeedGenerator(3)
    first, second, other = run(generator), run(generator), run(None)
    assert (first != second).any()
    assert (first != other).any()
    assert (second != other).any()


# Layers


class Decoder(keras.Model):
    """A GRU over an embedding, that also adds a memory."""

    def __init__(self, vocabulary=5, units=6):
        super().__init__()
        self.embedding = keras.layers.Embedding(vocabulary, units, embeddings_initializer="normal")
        self.cell = keras.layers.GRUCell(units)
        self.head = keras.layers.Dense(
            vocabulary, kernel_initializer=keras.initializers.Orthogonal(3)
        )
        self.units = units

    def call(self, tokens, state, memory):
        output, (state,) = self.cell(self.embedding(tokens) * 30 + memory, [state])
        return self.head(output), state


def decoder():
    model = Decoder()
    state = np.zeros((2, model.units), "float32")
    model(np.zeros(2, "int32"), state, state)
    return model, state, np.random.default_rng(12).normal(size=state.shape).astype("float32")


def test_a_compiled_decoder_sees_new_weights_and_compiles_once():
    model, state, memory = decoder()
    calls = []

    def step(tokens, cache, memory):
        calls.append(1)
        logits, new = model(tokens, cache[0], memory)
        return logits, [new]

    def write(tokens, state, memory):
        return generation.greedy(step, tokens, [state], memory, max_tokens=6)

    program = generation.compiled(write, model)
    arrays = (np.array([1, 2], "int32"), state, memory)

    def by_hand():
        tokens, now, found = arrays[0], state, []
        for _ in range(6):
            logits, now = model(tokens, now, memory)
            tokens = np.argmax(numpy(logits), axis=-1)
            found.append(tokens)
        return np.stack(found, axis=1)

    before = numpy(program(*arrays).tokens)
    np.testing.assert_array_equal(before, by_hand())
    traced = len(calls)
    model.set_weights([3 * np.random.default_rng(1).normal(size=w.shape) for w in model.weights])
    after = program(*arrays)
    np.testing.assert_array_equal(numpy(after.tokens), by_hand())
    assert (before != numpy(after.tokens)).any()
    if keras.config.backend() == "torch":
        assert not after.log_probabilities.requires_grad
    else:
        assert len(calls) == traced
    # Other shapes are another program, of the same variables.
    one = program(*(array[:1] for array in arrays))
    np.testing.assert_array_equal(numpy(one.tokens), numpy(after.tokens)[:1])


@pytest.mark.slow
def test_beams_of_a_decoder_are_the_hypotheses_of_whole_passes():
    """The states that beams were given are those of their own prefixes."""
    model, state, memory = decoder()

    def step(tokens, cache, memory):
        return model(tokens, cache, memory)

    def write(tokens, state, memory):
        return generation.beam_search(
            step,
            tokens,
            state,
            memory,
            num_beams=125,
            num_return=3,
            max_tokens=3,
            stop_tokens=(0,),
        )

    first = np.array([1, 2], "int32")
    found = generation.compiled(write, model)(first, state, memory)
    scores = numpy(found.scores)
    for row in range(2):
        expected = []
        prefixes = np.array(list(itertools.product(range(5), repeat=3)), "int32")
        count = len(prefixes)
        inputs = np.concatenate([np.full((count, 1), first[row]), prefixes[:, :2]], axis=1)
        now, gains = np.zeros((count, model.units), "float32"), []
        for t in range(3):
            logits, now = model(inputs[:, t], now, np.repeat(memory[row : row + 1], count, 0))
            chances = numpy(ops.log_softmax(logits))
            gains.append(chances[np.arange(count), prefixes[:, t]])
        seen = {}
        for tokens, gain in zip(prefixes.tolist(), np.array(gains).T, strict=True):
            length = tokens.index(0) + 1 if 0 in tokens else 3
            seen[tuple(tokens[:length])] = gain[:length].sum() / ((5 + length) / 6) ** 0.6
        expected = sorted(seen.items(), key=lambda item: -item[1])
        np.testing.assert_allclose(scores[row], [e[1] for e in expected[:3]], rtol=1e-4)
        best = padded(expected[0][0], 3, 0)
        np.testing.assert_array_equal(numpy(found.tokens)[row, 0], best)


@pytest.mark.slow
def test_an_attention_cell_generates():
    memory = np.random.default_rng(13).normal(size=(2, 4, 6)).astype("float32")
    cell = AttentionCell(keras.layers.LSTMCell(6), "general", mode="luong", attention_dim=6)
    table = np.random.default_rng(14).normal(size=(7, 6)).astype("float32")
    x = table[None, :2].repeat(2, axis=0)
    rnn = keras.layers.RNN(cell, return_sequences=True)
    rnn(x, initial_state=cell.initial_state(memory))
    head = keras.layers.Dense(7, kernel_initializer=keras.initializers.Orthogonal(2))
    head.build((None, 6))
    model = keras.Sequential([rnn])
    model.built = True

    def write(tokens, memory):
        def step(tokens, states):
            output, states = cell(ops.take(table, tokens, axis=0), states)
            return head(output), states

        return generation.greedy(step, tokens, cell.start_states(memory), max_tokens=5)

    found = numpy(generation.compiled(write, model)(np.array([1, 2], "int32"), memory).tokens)
    # The whole pass over what was written gives each token again.
    before = np.concatenate([[[1], [2]], found[:, :-1]], axis=1)
    outputs = rnn(table[before], initial_state=cell.initial_state(memory))
    np.testing.assert_array_equal(np.argmax(numpy(head(outputs)), axis=-1), found)


# `compiled`


def test_seeds_go_on_between_calls_of_a_compiled_function():
    dropout = keras.layers.Dropout(0.5, seed=1)
    dropout.build((2, 8))
    generator = keras.random.SeedGenerator(2)  # of no layer
    calls = []

    def function(x):
        calls.append(1)
        drawn = keras.random.uniform((2, 8), seed=generator)
        return {"dropped": dropout(x, training=True), "drawn": (drawn,)}

    program = generation.compiled(function, dropout)
    x = np.ones((2, 8), "float32")
    found = [numpy(program(x)) for _ in range(3)]
    for one, other in itertools.combinations(found, 2):
        assert (one["dropped"] != other["dropped"]).any()
        assert (one["drawn"][0] != other["drawn"][0]).any()
    generator.state.assign(keras.random.SeedGenerator(2).state)
    again = numpy(program(x))
    np.testing.assert_array_equal(again["drawn"][0], found[0]["drawn"][0])
    assert len(calls) <= 2 or keras.config.backend() == "torch"


def test_variables_of_other_layers_do_not_go_stale():
    first, second = keras.layers.Dense(3), keras.layers.Dense(3)
    first.build((None, 3))
    second.build((None, 3))
    program = generation.compiled(lambda x: second(first(x)), first)
    x = np.ones((1, 3), "float32")
    program(x)
    for layer in (first, second):
        layer.set_weights([np.eye(3), np.ones(3)])
    np.testing.assert_allclose(numpy(program(x)), [[3, 3, 3]])


def test_structures_of_arrays_go_in():
    layer = keras.layers.Dense(1)
    layer.build((1, 1))
    program = generation.compiled(lambda x: x["a"] + x["b"][0], layer)
    np.testing.assert_array_equal(numpy(program({"a": np.ones(2), "b": [np.ones(2)]})), [2, 2])
