"""The example program `examples.square_sequences`, from its squares to its files."""

import numpy as np
import pytest

from examples import square_sequences
from examples.square_sequences import build, by_rule, squares, training_inputs
from tests.arrays import numpy
from tests.examples.conftest import ran

# Data


def test_squares_are_squares():
    corners = squares(500, np.random.default_rng(0), noise=0.0).astype("float64")
    sides = np.roll(corners, -1, axis=1) - corners
    lengths = np.linalg.norm(sides, axis=-1)
    np.testing.assert_allclose(lengths, lengths[:, :1].repeat(4, 1), rtol=1e-5)
    turns = np.roll(sides, -1, axis=1)
    np.testing.assert_allclose((sides * turns).sum(-1), 0, atol=1e-5)
    ways = np.sign(sides[..., 0] * turns[..., 1] - sides[..., 1] * turns[..., 0])
    assert (ways == ways[:, :1]).all()
    assert 200 < (ways[:, 0] > 0).sum() < 300
    # Sizes, places and angles differ.
    assert lengths.std() > 0.05 and corners.mean(1).std() > 0.1
    angles = np.arctan2(sides[:, 0, 1], sides[:, 0, 0])
    assert np.histogram(angles, 4, (-np.pi, np.pi))[0].min() > 80


def test_noise_is_as_large_as_was_asked_for():
    plain, noisy = (squares(2000, np.random.default_rng(0), noise) for noise in (0.0, 0.1))
    assert (noisy - plain).std() == pytest.approx(0.1, rel=0.05)


def test_two_corners_say_where_the_others_are():
    corners = squares(2000, np.random.default_rng(0), noise=0.0)
    wrong = np.abs(by_rule(corners[:, :2]) - corners[:, 2:]).max((1, 2)) > 1e-4
    assert wrong.mean() < 0.005


# Teacher forcing


def settings(**changed):
    return {"train": 64, "epochs": 10, "noise": 0.05, "teacher_forcing": 0.5, **changed}


def test_teacher_forcing_changes_the_coins_and_nothing_else():
    corners, coins = training_inputs(settings(), seed=1)
    assert set(np.unique(coins)) == {0.0, 1.0} and abs(coins.mean() - 0.5) < 0.1
    for probability in (0.0, 1.0):
        others, always = training_inputs(settings(teacher_forcing=probability), seed=1)
        assert (always == probability).all()
        np.testing.assert_array_equal(others, corners)
    assert not np.array_equal(corners[:64], corners[64:128])
    np.testing.assert_array_equal(np.sort(corners[:64], 0), np.sort(corners[64:128], 0))


@pytest.mark.parametrize("attention", [False, True])
def test_a_coin_decides_what_the_decoder_reads(attention):
    training, inference = build(4, attention)
    corners = squares(6, np.random.default_rng(0))
    first, last = corners[:, :2], corners[:, 2:]
    coins = np.array([1, 0] * 3, "float32")[:, None, None]
    moved = last + 1
    before, after = (numpy(training([first, x, coins])) for x in (last, moved))
    # The first corner is said before any is read, the second after reading the true one or not.
    np.testing.assert_allclose(before[:, 0], after[:, 0], rtol=1e-6)
    changed = np.abs(before[:, 1] - after[:, 1]).max(-1) > 1e-4
    np.testing.assert_array_equal(changed, coins[:, 0, 0] > 0)
    alone = numpy(inference(first)["corners"])
    np.testing.assert_allclose(alone[1::2], before[1::2], rtol=1e-5, atol=1e-6)


# The run


@pytest.mark.slow
def test_files_and_figures(tmp_path, capsys):
    output = tmp_path / "squares"
    files = "with_attention.keras", "without_attention.keras", "alignments.png", "squares.png"
    said = ran(square_sequences.main, output, "--small", files=files)
    assert said["settings"]["teacher_forcing"] == 0.5
    for kind in ("without_attention", "with_attention"):
        losses = said["test_losses"][kind]
        assert len(losses) == 2 and np.isfinite(losses).all() and losses[0] != losses[1]
        assert said["means"][kind] == pytest.approx(np.mean(losses))
        assert said["standard_deviations"][kind] == pytest.approx(np.std(losses, ddof=1))
    np.testing.assert_allclose(np.sum(said["mean_alignments"], -1), 1, rtol=1e-4)
    ran(square_sequences.main, output, "--small", files=files)
    assert "finished already" in capsys.readouterr().out


def test_small_shrinks_what_was_not_given():
    settings, _ = square_sequences.parse(["--small", "--epochs", "3"])
    assert (settings["epochs"], settings["seeds"], settings["hidden"]) == (3, 2, 8)
    settings, _ = square_sequences.parse([])
    assert (settings["epochs"], settings["seeds"], settings["teacher_forcing"]) == (50, 5, 0.5)
