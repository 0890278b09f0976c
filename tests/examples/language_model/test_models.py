"""The model: causality, padding, its optimizer; and that generation is the whole model."""

import keras
import numpy as np
import pytest

from examples.errors import UsageError
from examples.language_model import command, models, prediction, recipes
from tests.examples.language_model.runs import SIZES, array

VOCABULARY = 11
NUMBERS = np.array([[3, 1, 4, 1, 5, 9, 2, 6]], "int32")


def tiny(positions="rotary", **options):
    settings = {**SIZES, "dropout": 0.0, "positions": positions, **options}
    keras.utils.set_random_seed(0)
    return models.build(VOCABULARY, settings)


def test_positions_have_names():
    assert tuple(models.POSITIONS) == command.POSITIONS
    assert recipes.Recipe().positions == command.POSITIONS[0]


@pytest.mark.parametrize("positions", command.POSITIONS)
def test_a_token_changes_only_what_comes_after_it(positions):
    model = tiny(positions, layers=2)
    before = array(model(NUMBERS))
    for place in (1, 6):
        changed = NUMBERS.copy()
        changed[0, place] = 10
        difference = np.abs(array(model(changed)) - before).max(axis=-1)[0]
        assert difference[:place].max() < 1e-6 < 1e-4 < difference[place:].min()
    # And the model knows their order.
    swapped = NUMBERS[:, [1, 0, *range(2, 8)]]
    assert np.abs(array(model(swapped)) - before)[0, -1].max() > 1e-5


@pytest.mark.parametrize("positions", command.POSITIONS)
def test_padding_on_the_left_changes_nothing(positions):
    model = tiny(positions)
    expected = array(model(NUMBERS[:, :5]))
    for filling in (0, 7):
        padded = np.concatenate([np.full((1, 3), filling), NUMBERS[:, :5]], axis=1).astype("int32")
        found = array(model(padded, mask=np.arange(8)[None] >= 3))
        np.testing.assert_allclose(found[:, 3:], expected, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("positions", command.POSITIONS)
def test_generation_with_caches_is_the_whole_model(positions):
    context, half = SIZES["context"], SIZES["context"] // 2
    model = tiny(positions, layers=2)
    generate, found = prediction.Generate(model, context), []

    def chosen(logits, rng):
        found.append(logits)
        return int(rng.integers(VOCABULARY))

    generate._chosen = chosen
    for prompt in ([3], [3, 1, 4, 1], [3, 1, 4, 1, 5, 9, 2]):
        found.clear()
        known = prompt[-half:]
        for place, number in enumerate(generate(prompt, 12)):
            # The step after a full cache reads the later half of it again.
            if place and place % (context - half + 1) == 0:
                known = known[-half:]
            padded = np.array([[*known, *[0] * (context - len(known))]], "int32")
            logits = array(model(padded))[0, len(known) - 1]
            np.testing.assert_allclose(found[place], logits, atol=1e-5)
            known = [*known, number]


def test_a_seed_draws_the_same_tokens():
    generate = prediction.Generate(tiny(), SIZES["context"])

    def drawn(temperature=1.0, top_k=None, seed=0):
        generate.temperature, generate.top_k, generate.seed = temperature, top_k, seed
        return list(generate([3], 10))

    assert drawn(seed=1) == drawn(seed=1) != drawn(seed=2)
    assert drawn(top_k=1) == drawn(temperature=0) == drawn(temperature=1e-6)


def test_tokens_are_drawn_by_their_probabilities():
    generate = prediction.Generate(tiny(), SIZES["context"], temperature=0.5, top_k=2)
    logits, rng = np.log(np.array([1, 2, 4], "float32")), np.random.default_rng(0)
    counts = np.bincount([generate._chosen(logits, rng) for _ in range(2000)], minlength=3)
    np.testing.assert_allclose(counts / 2000, [0, 0.2, 0.8], atol=0.03)


def test_sizes_that_do_not_go_together_are_one_line():
    with pytest.raises(UsageError, match="--dim must be a multiple of --heads, received 16 and 3"):
        tiny(heads=3)
    with pytest.raises(UsageError, match="needs an even number of features per head"):
        tiny(dim=18, heads=6)
    tiny("alibi", dim=18, heads=6)


def test_the_rate_rises_and_falls_to_a_tenth():
    settings = {"steps": 1000, "warmup_steps": 100, "learning_rate": 2e-3, "jit": False}
    model = tiny()
    models.compile_model(model, settings)
    rates = [float(model.optimizer._learning_rate(step)) for step in (0, 50, 100, 550, 1000)]
    np.testing.assert_allclose(np.array(rates)[[2, 4]], [2e-3, 2e-4], rtol=1e-4)
    assert rates[0] < rates[1] < rates[2] > rates[3] > rates[4]
    decayed = {
        variable.name: model.optimizer._use_weight_decay(variable)
        for variable in model.trainable_variables
    }
    assert decayed == {"embeddings": True, "kernel": True, "gamma": False, "beta": False}
