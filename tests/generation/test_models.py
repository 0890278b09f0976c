"""`generate` and `stream` of models: the tokens of functions, whatever the sizes and the way."""

import contextlib
import functools
import gc
import importlib
import weakref

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention import generation
from keras_attention.layers import kv_cache
from keras_attention.models import generating
from tests.generation import toy
from tests.gradients import gradients

VOCABULARY, ROWS, MOST = 12, 3, 6
PROMPT = np.random.default_rng(5).integers(1, VOCABULARY, (ROWS, 7)).astype("int32")
MASK = np.arange(7) >= np.array([[0], [3], [5]])
SOURCE = np.array([[3, 4, 5, 6], [7, 8, 0, 0]], "int32")


def decoder(block, blocks=1, mask_zero=False, **options):
    """A small decoder whose texts differ."""
    keras.utils.set_random_seed(4)
    tokens = ka.Embeddings(ka.ScaledEmbedding(VOCABULARY, 8, mask_zero=mask_zero))
    made = [block(16, num_heads=2, **options) for _ in range(blocks)]
    model = ka.Decoder(made, tokens, logits=ka.Logits(VOCABULARY, tied=False))
    if options.get("cross_attention"):
        return model
    model.build((None, None))
    return sharp(model)


def sharp(model):
    """With logits that are far from equal."""
    for seed, weight in enumerate(model.trainable_variables):
        noise = np.random.default_rng(seed).normal(size=weight.shape)
        weight.assign(toy.numpy(weight.value) + 0.3 * noise)
    return model


rotary = functools.partial(
    decoder, functools.partial(ka.TransformerBlock, causal=True, position="rotary")
)
MODELS = {
    "rotary": rotary,
    "a window": lambda: rotary(pattern=ka.patterns.SlidingWindow(3, 0), num_key_value_heads=1),
    "zeros that are masked": lambda: rotary(mask_zero=True),
    "a state": functools.partial(
        decoder,
        lambda *a, num_heads: ka.TransformerBlock(
            *a, num_heads, causal=True, attention=ka.Retention(num_heads, 4)
        ),
    ),
}


@functools.cache
def model(name="rotary"):
    return MODELS[name]()


@functools.cache
def source_model():
    made = ka.EncoderDecoder(
        ka.Encoder([ka.TransformerBlock(16, 2)], ka.Embeddings(ka.ScaledEmbedding(9, 8))),
        decoder(ka.TransformerBlock, 1, causal=True, cross_attention=True),
    )
    made([SOURCE, np.ones((2, 1), "int32")])
    return sharp(made)


def alone(model, prompt, most, method="greedy", **options):
    """The tokens of one row, of the function and a prompt without padding, as a list."""
    last, cache = model.start(np.array([prompt], "int32"), most)
    run = getattr(generation, method)
    found = run(model.step, last, cache, max_tokens=most, prompt=[prompt], **options)
    tokens, length = toy.numpy((found.tokens, found.lengths))
    return tokens.reshape(most)[: int(length.ravel()[0])].tolist()


def texts(found):
    """The tokens of each row, as lists."""
    tokens, lengths = toy.numpy((found.tokens, found.lengths))
    if tokens.ndim == 3:
        tokens, lengths = tokens[:, 0], lengths[:, 0]
    return [row[:length].tolist() for row, length in zip(tokens, lengths, strict=True)]


def real(row):
    return PROMPT[row][MASK[row]].tolist()


SAMPLE = {"temperature": 0.8, "top_k": 6, "seed": np.array([3, 4, 5])}
RULES = generation.Constraints(no_repeat_ngram_size=2, repetition_penalty=1.2)
WAYS = {
    "greedy": {"stop_tokens": ((2, 5), 7), "constraints": RULES},
    "sample": SAMPLE,
    "beam_search": {"num_beams": 2, "stop_tokens": (7,)},
}


def of_row(options, row):
    """The options of one row."""
    return {k: x[row : row + 1] if isinstance(x, np.ndarray) else x for k, x in options.items()}


@functools.cache
def expected(name, method):
    """What each row gives by itself, uncompiled, without padding."""
    return [
        alone(model(name), real(row), MOST, method, **of_row(WAYS[method], row))
        for row in range(ROWS)
    ]


CALLS = [("rotary", way) for way in WAYS] + [("a window", "greedy"), ("a state", "sample")]
# On TensorFlow, which compiles longest, one of each is enough.
CALLS = [pytest.param(*call, marks=pytest.mark.ci if call[0] != "rotary" else ()) for call in CALLS]


@pytest.mark.parametrize(("name", "method"), CALLS)
def test_padding_and_rounded_sizes_change_no_token(name, method):
    # The same program, of which the loop has no step here.
    model(name).generate(PROMPT, 1, method, mask=MASK, **WAYS[method])
    found = model(name).generate(PROMPT, MOST, method, mask=MASK, **WAYS[method])
    assert texts(found) == expected(name, method)


@pytest.mark.parametrize(
    ("name", "method"),
    [("rotary", "greedy"), pytest.param("a state", "sample", marks=pytest.mark.ci)],
)
def test_a_stream_has_the_same_tokens_and_can_be_stopped(name, method):
    options = WAYS[method]
    stream = model(name).stream(PROMPT, MOST, method=method, mask=MASK, chunk=3, **options)
    rows = [[] for _ in range(ROWS)]
    ended = np.zeros(ROWS, bool)
    for tokens, finished in stream:
        for row in np.flatnonzero(~ended):
            rows[row].append(int(tokens[row]))
        assert (finished >= ended).all() and tokens.shape == (ROWS,)
        ended = finished
    assert ended.all() and rows == expected(name, method) == texts(stream.result)
    stream = model(name).stream(PROMPT, MOST, method=method, mask=MASK, chunk=3, **options)
    first = [next(stream)[0].tolist(), next(stream)[0].tolist()]
    assert [list(x) for x in zip(*first, strict=True)] == [row[:2] for row in rows]
    # One token, then a chunk of 2.
    assert texts(stream.result) == [row[:3] for row in expected(name, method)]


@pytest.mark.parametrize(
    "name", ["rotary", *(pytest.param(x, marks=pytest.mark.ci) for x in ("a window", "a state"))]
)
def test_the_next_turn_reads_its_own_tokens_alone(name, monkeypatch):
    """Cached is as read anew: what follows a text, a text and another prompt, or a branch."""
    monkeypatch.setattr(kv_cache, "SHARED_MULTIPLE", 4)
    own, more = model(name), np.array([[3, 0, 9], [4, 4, 2], [0, 5, 0]], "int32")
    first = own.generate(PROMPT, [4, 2, 3], mask=MASK)
    before = [real(row) + text for row, text in enumerate(texts(first))]
    second = own.generate(more, MOST, mask=more > 0, cache=first.cache)
    every = [text + more[row][more[row] > 0].tolist() for row, text in enumerate(before)]
    assert texts(second) == [alone(own, text, MOST) for text in every]
    third = own.generate(None, 5, cache=first.cache)
    assert texts(third) == [alone(own, text, 5) for text in before]
    # A beginning that rows share.
    shared = own.generate(PROMPT[:1], 0).cache
    whole = [PROMPT[0].tolist() + row[row > 0].tolist() for row in more]
    for method in ("beam_search", "greedy") if name == "rotary" else ("greedy",):
        found = own.generate(more, 4, method, mask=more > 0, cache=shared, **WAYS[method])
        firsts = [x if isinstance(x[0], int) else x[0] for x in texts(found)]
        assert firsts == [alone(own, text, 4, method, **WAYS[method]) for text in whole]
        assert ("shared_key" in found.cache["cache"][0]) == (name == "rotary")
    branch = generation.select_rows(found.cache, [2, 0])
    longer = [whole[row] + firsts[row] for row in (2, 0)]
    assert texts(own.generate(None, 3, cache=branch)) == [alone(own, x, 3) for x in longer]
    rows = np.array([1, 1, 0])
    branch = generation.select_rows(second.cache, rows)
    every = [every[row] + texts(second)[row] for row in rows]
    # More than the first cache had room for.
    found = own.generate(None, 30, "sample", cache=branch, seed=[1, 2, 3])
    assert texts(found) == [
        alone(own, text, 30, "sample", seed=[row + 1]) for row, text in enumerate(every)
    ]


@pytest.mark.ci
def test_beams_go_on_from_the_best():
    first = model().generate(PROMPT, 3, "beam_search", num_beams=2, mask=MASK)
    found = model().generate(None, 4, cache=first.cache)
    every = [real(row) + text for row, text in enumerate(texts(first))]
    assert texts(found) == [alone(model(), text, 4) for text in every]


def test_a_source_of_any_length():
    own, first = source_model(), np.array([[1, 0], [0, 1]], "int32")
    options = {"source_mask": SOURCE > 0, "target_mask": first > 0}
    found = own.generate(SOURCE, first, 6, **options)
    stream = own.stream(SOURCE, first, 6, **options)
    assert np.stack([x for x, _ in stream], axis=1).tolist() == toy.numpy(found.tokens).tolist()
    again = own.generate(None, None, 3, cache=own.generate(SOURCE, first, 3, **options).cache)
    for row in range(2):
        source = SOURCE[row : row + 1, SOURCE[row] > 0]
        last, cache, memory = own.start(source, [[1]], 6)
        tokens = generation.greedy(own.step, last, cache, memory, max_tokens=6).tokens
        assert toy.numpy(tokens)[0].tolist() == texts(found)[row]
        assert texts(found)[row][3:] == texts(again)[row]


DRAFTS = {
    "lookup": lambda: generation.PromptLookup(tokens=3, ngram=2),
    "a small model": lambda: generation.DraftModel(model("a window"), tokens=3),
}


@pytest.mark.parametrize(
    ("draft", "name", "method"),
    [
        ("lookup", "rotary", "greedy"),
        pytest.param("lookup", "a window", "greedy", marks=pytest.mark.ci),
        pytest.param("a small model", "zeros that are masked", "sample", marks=pytest.mark.ci),
        pytest.param("a small model", "rotary", "sample", marks=pytest.mark.ci),
    ],
)
def test_a_draft_changes_no_token(draft, name, method):
    options = {**WAYS[method], "draft": DRAFTS[draft]()}
    found = model(name).generate(PROMPT, MOST, method, mask=MASK, **options)
    assert texts(found) == expected(name, method)
    if name == "zeros that are masked":
        return  # Theirs may be the last of a text, which `start` refuses.
    more = model(name).generate(None, 3, method, cache=found.cache, **options)
    every = [real(row) + text for row, text in enumerate(texts(found))]
    options = WAYS[method]
    assert texts(more) == [
        alone(model(name), text, 3, method, **of_row(options, row))
        for row, text in enumerate(every)
    ]


@pytest.mark.ci
def test_a_draft_needs_no_more_room_than_the_text():
    # Sizes that are not rounded up.
    own, prompt = model(), np.resize(PROMPT, (2, 16))
    plain, draft = own.generate(prompt, 16), generation.DraftModel(own, tokens=8)
    drafted = own.generate(prompt, 16, draft=draft)
    assert texts(drafted) == texts(plain)
    more = own.generate(None, 2, cache=drafted.cache, draft=draft)
    assert texts(more) == texts(own.generate(None, 2, cache=plain.cache))


@pytest.mark.ci
def test_several_tokens_come_in_a_step_where_a_draft_is_right():
    own = model()
    # It drafts four of its own tokens.
    request = own._request(PROMPT, MOST, {}, MASK, draft=own)
    given = request.given(keras.tree.map_structure(toy.ops.convert_to_tensor, request.arrays))
    constants, carried = request.begin(given)
    carried = request.search.go_on(constants, carried)
    assert int(carried.count) == -(-MOST // 5)


@pytest.mark.ci
def test_samples_with_a_draft_have_the_distribution_by_enumeration():
    small = decoder(functools.partial(ka.TransformerBlock, causal=True), 1)
    prompt, count, kept = np.full((2000, 1), 3, "int32"), 2, 3
    found = small.generate(
        prompt, count, "sample", top_k=kept, seed=1, draft=generation.DraftModel(model(), 2)
    )
    tokens = toy.numpy(found.tokens)
    chances = {(): 1.0}
    for _ in range(count):
        longer = {}
        for text, chance in chances.items():
            logits = toy.numpy(small(np.array([[3, *text]], "int32")))[0, -1].astype("float64")
            best = np.argsort(-logits)[:kept]
            shares = np.exp(logits[best] - logits.max())
            for token, share in zip(best, shares / shares.sum(), strict=True):
                longer[(*text, int(token))] = chance * share
        chances = longer
    counts = {text: 0 for text in chances}
    for row in map(tuple, tokens.tolist()):
        counts[row] += 1
    wanted = np.array([chances[text] for text in chances]) * len(tokens)
    statistic = ((np.array([*counts.values()]) - wanted) ** 2 / np.maximum(wanted, 1)).sum()
    assert statistic < len(wanted) + 6 * np.sqrt(2 * len(wanted))


def test_one_program_serves_many_prompts_and_goes_with_its_model():
    own = decoder(functools.partial(ka.TransformerBlock, causal=True), 1)
    for rows, length, most in [(3, 5, 9), (4, 16, 16), (3, 9, 12)]:
        prompt = np.ones((rows, length), "int32")
        assert own.generate(prompt, most).tokens.shape == (rows, most)
        own.generate(prompt, most, "sample", temperature=length / 10, seed=most)
    programs = vars(own)["_programs"].programs
    # Of 3 and of 4 rows, greedy and sampled.
    assert len(programs) == 4
    own.set_weights([np.zeros(x.shape) for x in own.get_weights()])
    assert texts(own.generate(prompt, 2)) == [[0, 0]] * 3
    assert len(programs) == 4
    gone = weakref.ref(own)
    del own, programs
    gc.collect()
    assert gone() is None


def test_a_step_whose_shapes_come_again_is_a_program(monkeypatch):
    """It reads new weights, raises where a cache is full, and keeps gradients."""
    own, calls = decoder(ka.TransformerBlock, causal=True, mask_zero=True), []
    call, ids, given = own.call, PROMPT[:, :2], {"mask": MASK[:, 2:4]}
    monkeypatch.setattr(own, "call", lambda *a, **given: calls.append(1) or call(*a, **given))
    _, cache = own.start(PROMPT, 5)
    alike = functools.partial(np.testing.assert_allclose, atol=1e-5)
    torch = importlib.import_module("torch") if keras.config.backend() == "torch" else None
    with contextlib.nullcontext() if torch is None else torch.no_grad():
        for scale in (1, 1, 1, 0.9):
            own.set_weights([scale * x for x in own.get_weights()])
            calls.clear()
            both = own.steps(ids, cache, **given), own(ids, cache=cache, **given)
            keras.tree.map_structure(alike, *toy.numpy(both))
        assert len(calls) == 1
        full = [{**x, "index": x["index"] + 5} for x in cache]
        with pytest.raises(ValueError, match="11 entries, too few"):
            own.steps(ids, full, **given)
    of_values = lambda x: own.steps(ids, [{**cache[0], "value": x}], **given)[0]  # noqa: E731
    assert np.any(gradients(of_values, [toy.numpy(cache[0]["value"])])[0])


def test_sizes_are_few_and_near():
    sizes = [generating.rounded(n) for n in range(1, 3000)]
    assert all(n <= size <= max(n + 1, 1.5 * n) for n, size in enumerate(sizes, 1))
    assert len(set(sizes)) == 23
    assert generating.rounded(1, 16) == 16 and generating.rounded(17, 16) == 24


@pytest.mark.ci
def test_a_quantized_model_has_programs_of_its_own():
    own = decoder(functools.partial(ka.TransformerBlock, causal=True))
    own.generate(PROMPT, MOST)
    before = vars(own)["_programs"].programs
    own.quantize("int8")
    assert texts(own.generate(PROMPT, MOST)) == [alone(own, row, MOST) for row in PROMPT]
    assert vars(own)["_programs"].programs is not before


def test_the_first_call_says_that_it_compiles(capfd):
    keras.config.enable_interactive_logging()
    own = decoder(functools.partial(ka.TransformerBlock, causal=True), 1)
    for _ in range(2):
        own.generate([[1, 2]], 2)
    said = capfd.readouterr().err
    assert said.count("Compiling a program for 1 rows, prompts of at most 2 tokens") == 1
