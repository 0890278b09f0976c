"""`plot_attention`: what is drawn, that it can be read, and that nothing is cut off."""

import sys
import warnings

import numpy as np
import pytest

matplotlib = pytest.importorskip("matplotlib")

from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: E402

from keras_attention.visualization import labels, overlay_attention, plot_attention  # noqa: E402
from tests.visualization.small_page import weights  # noqa: E402

WORDS = ["The", "cat", "sat", "on", "the", "mat", "."]


def panels(figure):
    """Axes with weights, without the bar of colors and cells without a head."""
    return [axes for axes in figure.axes if axes.axison and axes.get_label() != "<colorbar>"]


def said(axis):
    return [label.get_text() for label in axis.get_ticklabels() if label.get_text()]


def rendered(figure):
    canvas = FigureCanvasAgg(figure)
    with warnings.catch_warnings():
        # A machine may have no font for a letter.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        warnings.filterwarnings("ignore", "Matplotlib currently does not support")
        canvas.draw()
    return canvas


def assert_drawn(figure, heads, end=None, start=0):
    """The weights, on one scale, which those of a quarter of the queries may exceed."""
    if end is None:
        largest = np.sort(heads.max(axis=-1).ravel())
        end = largest[int(np.ceil(0.75 * (len(largest) - 1)))]
    for axes, head in zip(panels(figure), heads, strict=True):
        np.testing.assert_allclose(axes.images[0].get_array(), head, rtol=1e-6)
        assert axes.images[0].get_clim() == pytest.approx((start, end))


def assert_all_within(figure):
    """Nothing that is drawn is cut off."""
    box = figure.get_tightbbox(rendered(figure).get_renderer())
    width, height = figure.get_size_inches()
    assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height, box


@pytest.mark.parametrize(
    "word",
    ["<script>", "\"'", "$x^$", "\\frac", "\u2028", "x" * 100_000, "\u05e1\u202e", "\ud800", "猫"],
)
def test_any_word_name_and_title_is_drawn(word):
    scores = {word: weights(1, 3, 3), "other": weights(1, 3, 3)}
    figure = plot_attention(scores, [word, "a", "b"], title=word)
    rendered(figure)
    visible = labels.visible(word)
    expected = visible if len(visible) < 100 else "x" * 99 + "…"
    assert figure.get_suptitle() == panels(figure)[0].get_title() == expected
    axes = panels(figure)[0]
    assert said(axes.yaxis)[0] == (visible if len(visible) < 25 else "x" * 23 + "…")
    assert not any(label.get_parse_math() for label in axes.get_yticklabels())
    if len(word) < 100:
        assert_all_within(figure)


def assert_apart(axis, renderer, vertical):
    """Words at an axis do not overlap, and are of a size to be read."""
    labels = [label for label in axis.get_ticklabels() if label.get_text()]
    centers = sorted(
        (box.y0 + box.y1 if vertical else box.x0 + box.x1) / 2
        for box in (label.get_window_extent(renderer) for label in labels)
    )
    size = labels[0].get_fontsize()
    assert size >= 5
    assert np.diff(centers).min() >= 0.95 * size * labels[0].figure.dpi / 72


def test_one_head():
    scores = weights(7, 7)
    figure = plot_attention(scores, WORDS, title="of $one$ head")
    (axes,) = panels(figure)
    assert_drawn(figure, scores[None])
    assert said(axes.xaxis) == said(axes.yaxis) == WORDS
    assert figure.get_suptitle() == "of $one$ head"
    assert_all_within(figure)


def test_heads_are_a_grid_of_one_scale():
    scores = weights(6, 3, 7)
    figure = plot_attention(scores[None], WORDS[:3], WORDS)
    drawn = panels(figure)
    assert [axes.get_title() for axes in drawn] == [f"head {n}" for n in range(1, 7)]
    assert_drawn(figure, scores)
    assert len({axes.get_position().y0 for axes in drawn}) == 2
    assert_all_within(figure)


def test_layers_are_rows():
    layers = {"encoder/attention": weights(1, 4, 7, 7), "cross": weights(2, 3, 7)}
    queries = {"encoder/attention": WORDS, "cross": WORDS[:3]}
    figure = plot_attention(layers, queries, dict.fromkeys(layers, WORDS))
    titles = [axes.get_title() for axes in panels(figure)]
    assert titles == [
        *(f"encoder/attention, head {n}" for n in range(1, 5)), "cross, head 1", "cross, head 2",
    ]  # fmt: skip
    assert_all_within(figure)
    listed = plot_attention([weights(2, 5, 5)] * 3)
    assert [axes.get_title() for axes in panels(listed)][-1] == "layer 3, head 2"


def test_sixty_words_can_be_read():
    long = [f"{word}{n}" for n, word in enumerate((WORDS * 9)[:60])]
    for scores in (weights(60, 60), weights(2, 60, 60)):
        figure = plot_attention(scores, long)
        axes = panels(figure)[0]
        assert len(said(axes.yaxis)) == 60
        renderer = rendered(figure).get_renderer()
        assert_apart(axes.yaxis, renderer, vertical=True)
        assert_apart(axes.xaxis, renderer, vertical=False)


def test_of_a_thousand_words_every_few_are_shown():
    long = [f"word{n}" for n in range(1000)]
    figure = plot_attention(weights(1000, 1000), long)
    (axes,) = panels(figure)
    shown = said(axes.yaxis)
    assert 40 < len(shown) < 200
    assert [long.index(word) for word in shown] == [int(tick) for tick in axes.get_yticks()]
    assert_apart(axes.yaxis, rendered(figure).get_renderer(), vertical=True)
    assert max(figure.get_size_inches()) < 20


def test_positions_without_words_are_numbers_at_round_intervals():
    for length, step in ((30, 2), (120, 5), (1000, 50)):
        (axes,) = panels(plot_attention(weights(length, length)))
        assert axes.get_yticks().tolist() == list(range(0, length, step))
        assert said(axes.yaxis) == [str(n) for n in range(0, length, step)]


def test_numbers_with_signs_a_given_scale_and_a_series():
    scores, series = weights(2, 5, 7) - 0.1, np.sin(np.arange(7))
    figure = plot_attention(scores, figsize=(5, 4), vmax=0.25, series=series)
    lines, drawn = figure.axes[:2], [axes for axes in figure.axes if axes.images]
    for axes, head in zip(drawn, scores, strict=True):
        np.testing.assert_allclose(axes.images[0].get_array(), head, rtol=1e-6)
        assert axes.images[0].get_clim() == (-0.25, 0.25)
    for axes, panel in zip(lines, drawn, strict=True):
        np.testing.assert_allclose(axes.lines[0].get_ydata(), series)
        assert axes.get_xlim() == panel.get_xlim()
    assert figure.get_size_inches().tolist() == [5, 4]


def test_many_layers_have_a_scale_each_and_fit_a_screen():
    layers = {f"layer {n}": weights(8, 60, 60) / n for n in range(1, 13)}
    figure = plot_attention(layers)
    ends = [panel.images[0].get_clim()[1] for panel in panels(figure)[::8]]
    assert ends[0] > 5 * ends[-1] > 0
    assert max(figure.get_size_inches()) < 26


@pytest.mark.parametrize("colors", [(), (1,), (3,)])
def test_weights_over_images(colors):
    images, grids = weights(2, 8, 6, *colors) * 255, weights(2, 4, 3)
    figure = overlay_attention(images, grids, ["$a", "b"])
    first, second = (axes.images for axes in figure.axes[::2])
    np.testing.assert_allclose(second[1].get_array(), grids[0])
    assert first[0].get_array().shape == second[0].get_array().shape == images.squeeze()[0].shape
    assert figure.axes[0].get_title() == "$a" and second[1].get_extent() == [-0.5, 5.5, 7.5, -0.5]


def test_words_of_tensorflow_are_bytes():
    (axes,) = panels(plot_attention(weights(2, 2), ["café".encode(), b"noir"]))
    assert said(axes.yaxis) == ["café", "noir"]


def test_a_layer_that_pools_has_words_at_one_side():
    figure = plot_attention(weights(1, 1, 1, 7), key_tokens=WORDS)
    (axes,) = panels(figure)
    assert (said(axes.yaxis), said(axes.xaxis)) == ([], WORDS)
    assert_all_within(figure)


def test_weights_that_are_all_zero_are_drawn_and_pyplot_knows_nothing_of_it():
    rendered(plot_attention(np.zeros((2, 2))))
    pyplot = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or not pyplot.get_fignums()


@pytest.mark.parametrize(
    "word, shown",
    [
        ("word", "word"),
        (" the", "␣the"),
        ("  ", "␣␣"),
        ("a b ", "a b␣"),
        ("", "∅"),
        ("a\tb\r\n", "a⇥b↵↵"),
        ("\u2028", "\\u2028"),
        ("\ud83d", "\\ud83d"),
        ("\u2066x", "\\u2066x"),
        ("می\u200cخواهم", "می\u200cخواهم"),
    ],
)
def test_what_a_reader_would_not_see_is_made_visible(word, shown):
    assert labels.visible(word) == shown
