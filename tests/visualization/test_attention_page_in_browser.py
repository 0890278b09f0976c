"""`attention_html`: how the page behaves in a browser."""

import os
import pathlib
import re

import numpy as np
import pytest

from keras_attention.visualization import attention_html
from tests.visualization.small_page import ODD, SOURCE, TARGET, weights

# Set where the browser must be there, as in continuous integration.
REQUIRED = os.environ.get("KERAS_ATTENTION_BROWSER") == "1"
CHROMIUM = "/usr/bin/chromium"
# In milliseconds; generous, for a machine that does other things too.
PATIENCE = 120_000


@pytest.fixture(scope="module")
def browser():
    def missing(reason):
        (pytest.fail if REQUIRED else pytest.skip)(reason)

    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("Playwright is not installed: pip install playwright")
    if not os.path.exists(CHROMIUM):
        missing(f"There is no {CHROMIUM}: apt-get install chromium")
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"], timeout=PATIENCE
        )
        yield running
        running.close()


@pytest.fixture
def opened(browser, tmp_path):
    """A function that opens a page; what it asks of a network, or complains of, fails the test."""
    complaints, contexts = [], []

    def open_page(scores, *tokens, width=1280, scheme="light", touch=False, **options):
        path = tmp_path / "page.html"
        attention_html(scores, *tokens, path=path, **options)
        context = browser.new_context(
            viewport={"width": width, "height": 800},
            color_scheme=scheme,
            offline=True,
            has_touch=touch,
            is_mobile=touch,
        )
        contexts.append(context)
        context.set_default_timeout(PATIENCE)
        page = context.new_page()
        url = pathlib.Path(path).as_uri()
        page.on("request", lambda request: request.url != url and complaints.append(request.url))
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(url)
        page.wait_for_selector("#largest tr")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not complaints


def expect(page, selector):
    """Waits for what is said of the elements.

    Not `wait_for_function`: what it looks at a second time it compiles in the page, which the
    page's own policy forbids, so that it works on fast machines only.
    """
    from playwright.sync_api import expect as expect_of

    expect_of.set_options(timeout=PATIENCE)
    return expect_of(page.locator(selector))


def word(page, side, place):
    return page.locator(f"#{side} > [data-place='{place}']")


def table(page):
    """The rows of the table: (word, position from 0, weight)."""
    rows = [row.split("\t") for row in page.locator("#largest tr").all_inner_texts()]
    named = [re.fullmatch(r"(.*) (\d+)", row[0], re.DOTALL).groups() for row in rows]
    return [
        (text, int(number) - 1, float(row[-1]))
        for (text, number), row in zip(named, rows, strict=True)
    ]


def assert_table(page, expected, words):
    order = np.argsort(-expected, kind="stable")[:10]
    found = table(page)
    assert [place for _, place, _ in found] == order.tolist()
    assert [text for text, _, _ in found] == [words[place] for place in order]
    np.testing.assert_allclose([weight for *_, weight in found], expected[order], atol=1.01e-4)


SCORES = {"self": weights(4, 6, 6), "cross": weights(4, 6, 7, seed=1)}
WORDS = ({"self": TARGET, "cross": TARGET}, {"self": TARGET, "cross": SOURCE})


def test_hovering_shows_both_directions_of_the_mean_and_of_a_head(opened):
    page = opened(SCORES, *WORDS, title="Translation")
    assert page.title() == page.locator("h1").inner_text() == "Translation"
    page.select_option("#layer", label="cross")
    expect(page, "#keys > *").to_have_count(7)
    mean = SCORES["cross"].mean(axis=0)
    assert page.locator("#chosen").inner_text() == "Attended to most, on average"
    assert_table(page, mean.mean(axis=0), SOURCE)
    word(page, "queries", 1).hover()
    expect(page, "#chosen").to_have_text("“Hunde” attends to")
    assert_table(page, mean[1], SOURCE)
    assert page.locator("#lines path").count() == (mean[1] >= 0.03 * mean[1].max()).sum()

    page.locator("#heads input[value='2']").check(force=True)
    word(page, "keys", 5).hover()
    expect(page, "#chosen").to_have_text("“beach” is attended to by")
    assert_table(page, SCORES["cross"][2, :, 5], TARGET)
    shares = page.eval_on_selector_all(
        "#queries > *", "all => all.map(span => Number(span.style.getPropertyValue('--share')))"
    )
    column = SCORES["cross"][2, :, 5]
    np.testing.assert_allclose(shares, column / column.max(), atol=1e-3)


def test_of_a_causal_layer_neither_the_first_keys_nor_the_first_queries_lead(opened):
    scores = np.tril(SCORES["self"])
    scores /= scores.sum(axis=-1, keepdims=True)
    page = opened(scores, TARGET)
    mean = scores.mean(axis=0)
    assert_table(page, mean.sum(axis=0) / np.arange(6, 0, -1), TARGET)
    # The first rows, of few keys, do not pale the others.
    end = np.quantile(mean.max(axis=-1), 0.75, method="higher")
    assert page.locator("#most").inner_text() == f"≥ {end:.4f}"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_numbers_with_signs_have_two_colors(opened, scheme):
    scores = SCORES["self"][0] - 0.2
    page = opened(scores, TARGET, scheme=scheme)
    word(page, "queries", 2).hover()
    order = np.argsort(-np.abs(scores[2]), kind="stable")
    found = table(page)
    assert [place for _, place, _ in found] == order.tolist()
    np.testing.assert_allclose([x for *_, x in found], scores[2][order], atol=2e-4)
    colors = page.eval_on_selector_all(
        "#largest i", "all => all.map(bar => getComputedStyle(bar).backgroundColor)"
    )
    assert len(set(colors)) == 2
    negative = scores[2][order] < 0
    assert [color == colors[negative.argmax()] for color in colors] == negative.tolist()
    assert page.locator("#least").inner_text().lstrip("≤ ").startswith("-")


def test_the_keyboard_alone(opened):
    page = opened(SCORES, *WORDS)
    page.locator("#layer").focus()
    for _ in range(2):  # The heads are one stop, and so is each list of words.
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('[role=listbox]').id") == "queries"
    for key in ("ArrowDown", "ArrowRight", "ArrowUp", "End", "ArrowDown"):
        page.keyboard.press(key)
    mean = SCORES["self"].mean(axis=0)
    assert page.locator("#chosen").inner_text() == "“.” attends to"
    assert_table(page, mean[5], TARGET)
    selected = page.locator("[aria-selected='true']")
    assert selected.count() == 1
    assert selected.get_attribute("aria-label") == "., 6 of 6"
    best = int(mean[5].argmax())
    assert page.locator("#spoken").inner_text().startswith(f"“.” attends to {TARGET[best]} 0.")
    page.keyboard.press("Enter")
    word(page, "keys", 2).hover()
    expect(page, "#pair").to_contain_text("laufen")
    assert page.locator("#pair").inner_text() == f"“.” → “laufen”: {mean[5, 2]:.4f}"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('[role=listbox]').id") == "keys"
    page.keyboard.press("Escape")
    assert page.locator("[aria-selected='true']").count() == 0


def test_all_pairs_tell_the_weight_under_the_mouse(opened):
    page = opened(SCORES["cross"][:1], TARGET, SOURCE)
    box = page.locator("#matrix").bounding_box()
    page.mouse.move(box["x"] + 3.5 / 7 * box["width"], box["y"] + 2.5 / 6 * box["height"])
    expect(page, "#pair").to_contain_text("laufen")
    expected = SCORES["cross"][0, 2, 3]
    assert page.locator("#pair").inner_text() == f"“laufen” → “on”: {expected:.4f}"
    assert page.locator("#heads").is_hidden() and page.locator("#layers").is_hidden()


def test_any_word_is_text(opened):
    page = opened(weights(14, 14), ODD, title="<img src=x onerror=alert(1)>")
    assert page.title() == "<img src=x onerror=alert(1)>"
    shown = page.locator("#keys > * > b").all_text_contents()
    assert shown[:5] == [*ODD[:4], "a\\u2028b"]
    assert shown[5:] == ["\\ud800", "\\u202eabc", "∅", "␣", "↵", *ODD[10:]]
    assert page.locator("main script, main b b, main img").count() == 0


def test_pooling_has_headings_of_its_own(opened):
    page = opened({"block": weights(2, 7, 7), "pool": weights(1, 1, 7)}, SOURCE)
    headings = page.locator("#queries-name, #keys-name")
    assert headings.all_inner_texts() == ["Queries: what looks", "Keys: what is looked at"]
    page.select_option("#layer", label="pool")
    expect(page, "#queries-name").to_have_text("Pooling")
    assert headings.all_inner_texts() == ["Pooling", "Words"]
    assert page.locator("#chosen").inner_text() == "Attended to most"
    assert_table(page, weights(1, 1, 7)[0, 0], SOURCE)
    assert "learned queries" in page.locator("#axes").inner_text()
    page.select_option("#layer", label="block")
    expect(page, "#queries-name").to_have_text("Queries: what looks")


def test_weight_on_other_positions_is_a_line(opened):
    scores = np.zeros((2, 3, 3), "float32")
    scores[:] = [[0.5, 0.38, 0.12], [1, 0, 0], [0, 0, 1]]
    scores[1] = np.eye(3)[[0, 1, 1]]
    page = opened(scores, ["a", "b", "c"], ["a", "b", None])
    others = page.locator("#others")
    # The mean of (0.12, 0, 1) and of none.
    assert others.inner_text() == "19% on other positions"
    page.locator("#heads input[value='0']").check(force=True)
    word(page, "queries", 0).hover()
    expect(page, "#others").to_have_text("12% on other positions")
    word(page, "queries", 1).hover()
    expect(page, "#others").to_have_text("")
    word(page, "queries", 2).hover()
    expect(page, "#others").to_have_text("100% on other positions")
    word(page, "keys", 0).hover()
    expect(page, "#others").to_have_text("")


def test_all_pairs_have_labels_and_as_many_as_there_is_room_for(opened):
    page = opened(SCORES["cross"], TARGET, SOURCE)
    assert page.locator("#rows span").all_inner_texts() == TARGET
    assert page.locator("#columns span").all_inner_texts() == SOURCE
    word(page, "queries", 2).hover()
    expect(page, "#rows .chosen").to_have_text("laufen")
    assert page.locator("#columns .chosen").count() == 0
    # A label is beside its row.
    row, matrix = (page.locator(s).bounding_box() for s in ("#rows .chosen", "#matrix"))
    middle = (row["y"] + row["height"] / 2 - matrix["y"]) / matrix["height"]
    assert abs(middle - 2.5 / 6) < 0.03
    long = opened(weights(200, 200), [f"word{n}" for n in range(200)], width=390)
    labels = long.locator("#columns span").all_inner_texts()
    assert 5 < len(labels) < 60 and labels[0] == "word0"
    boxes = long.locator("#columns span").evaluate_all(
        "all => all.map(span => span.getBoundingClientRect().left)"
    )
    assert (np.diff(boxes) > 9).all()


def test_a_finger_taps(opened):
    page = opened(SCORES["cross"], TARGET, SOURCE, width=390, touch=True)
    assert page.locator("#pair").inner_text() == "Tap a word to see what it attends to."
    assert page.locator(".tapping").is_visible() and page.locator(".pointing").is_hidden()
    word(page, "queries", 1).tap()
    expect(page, "#chosen").to_have_text("“Hunde” attends to")
    assert "Tap" in page.locator("#pair").inner_text()
    word(page, "keys", 2).tap()
    weight = SCORES["cross"].mean(axis=0)[1, 2]
    expect(page, "#pair").to_have_text(f"“Hunde” → “run”: {weight:.4f}")
    expect(page, "#chosen").to_have_text("“Hunde” attends to")
    word(page, "keys", 2).tap()
    expect(page, "#chosen").to_have_text("“run” is attended to by")
    word(page, "keys", 2).tap()
    expect(page, "#pair").to_have_text("Tap a word to see what it attends to.")


def test_words_of_any_length_leave_the_page_as_it_is(opened):
    words = ["x" * 100_000, "😀" * 50_000, *SOURCE[2:]]
    page = opened({"n" * 5000: weights(2, 7, 7), "b": weights(2, 7, 7)}, words, width=390)
    word(page, "queries", 0).hover()
    expect(page, "#chosen").to_contain_text("x…")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.evaluate("document.documentElement.scrollHeight") < 4000
    assert "\ufffd" not in page.locator("main").inner_text()


def luminance(color):
    parts = np.array([float(part) for part in re.findall(r"[\d.]+", color)[:3]])
    parts = parts if "srgb" in color else parts / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return linear @ [0.2126, 0.7152, 0.0722]


# Every text that is seen, with what is behind it.
TEXTS = """() => [...document.querySelectorAll("h1, h2, p, label, select, td, th, b, small")]
  .filter(text => text.getClientRects().length && text.textContent && !text.matches(".heard"))
  .map(text => {
    const color = (element, name) => getComputedStyle(element).getPropertyValue(name);
    let behind = text;
    while (/^rgba\\(0, 0, 0, 0\\)$|\\/ 0\\)$/.test(color(behind, "background-color"))) {
      behind = behind.parentElement;
    }
    return [text.textContent, color(text, "color"), color(behind, "background-color")];
  })"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast_is_that_of_wcag_aa_on_every_tint(opened, scheme):
    even = np.ones((1, 7, 7), "float32") / 7  # All tints at their darkest.
    page = opened(even, SOURCE, scheme=scheme)
    word(page, "queries", 1).hover()
    page.wait_for_selector("[aria-selected='true']")
    texts = page.evaluate(TEXTS)
    assert len(texts) > 40
    for text, *colors in texts:
        low, high = sorted(luminance(color) for color in colors)
        assert (high + 0.05) / (low + 0.05) >= 4.5, (text, colors)
    dark = luminance(page.evaluate("getComputedStyle(document.body).backgroundColor")) < 0.1
    assert dark == (scheme == "dark")


@pytest.mark.parametrize("width", [320, 1280])
def test_nothing_is_wider_than_the_screen(opened, width):
    words = ["a-word-that-is-longer-than-any-line-of-any-phone-" * 3, *SOURCE[1:]]
    page = opened({"a/very/long/name/of/a/layer" * 4: weights(12, 7, 7)}, words, width=width)
    for _ in range(2):
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        word(page, "queries", 0).hover()


def test_a_long_text_stays_quick(opened):
    words = [f"word{n}" for n in range(500)]
    page = opened([weights(4, 500, 500), weights(4, 500, 500, seed=1)], words)
    took = page.evaluate(
        """() => {
          const start = performance.now();
          for (let place = 0; place < 20; place++) choose({ side: "keys", place });
          return (performance.now() - start) / 20;
        }"""
    )
    assert took < 500, f"{took:.0f} ms to show a word"
    word(page, "queries", 7).click()
    assert page.locator("#rounding").inner_text().startswith("Weights are stored in 8 bits")
    mean = weights(4, 500, 500).mean(axis=0)
    assert table(page)[0][1] == mean[7].argmax()
    np.testing.assert_allclose(table(page)[0][2], mean[7].max(), atol=2e-3)


def test_printing_shows_what_was_chosen_and_no_controls(opened):
    page = opened(SCORES, *WORDS)
    assert page.locator("#shown").is_hidden()
    page.emulate_media(media="print")
    assert page.locator("#shown").inner_text() == "self, mean of the heads"
    assert page.locator(".controls").is_hidden()
