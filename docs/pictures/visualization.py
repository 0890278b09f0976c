"""Draws `visualization_page.png` and `visualization_heads.png` of a trained translator.

python docs/pictures/visualization.py RUN

The run is one of `examples.translation`. The page needs Playwright and Chromium.
"""

import sys
import tempfile
from pathlib import Path

import keras
import numpy as np
from playwright.sync_api import sync_playwright

from examples import shared, texts, translation
from keras_attention.visualization import attention_html, collect_attention, plot_attention

SENTENCE = "A little girl in a red dress is throwing a ball to her dog because it wants to play."
SHOWN = "decoder_2/cross_attention"
POINTED_AT = 4
CHROMIUM = "/usr/bin/chromium"
HERE = Path(__file__).parent


def translated(model, source):
    """START and the most likely tokens after it, before STOP."""
    tokens = [translation.START]
    while len(tokens) < 40:
        logits = model((source, np.array([tokens], "int32")))
        best = int(keras.ops.argmax(logits[0, -1]))
        if best == translation.STOP:
            break
        tokens.append(best)
    return tokens


def main():
    """Collects and draws."""
    _, model = shared.load_run(sys.argv[1], translation.PROGRAM)
    tokenizer = texts.load_tokenizer(sys.argv[1])
    source = np.append(texts.encode(tokenizer, [SENTENCE])[0], translation.STOP)[None]
    target = np.array([translated(model, source)], "int32")
    words = (
        [str(tokenizer.id_to_token(int(token))).replace("▁", "") for token in row[0]]
        for row in (source, target)
    )
    draw(collect_attention(model, (source, target)), *words)


def draw(scores, source, target):
    """Draws weights by layer, and the subwords at both sides."""
    queries = {name: source if name.startswith("encoder") else target for name in scores}
    keys = {
        name: target if "decoder" in name and "cross" not in name else source for name in scores
    }
    figure = plot_attention(scores[SHOWN], target, source, title=SHOWN)
    figure.savefig(HERE / "visualization_heads.png", dpi=100)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = Path(folder) / "page.html"
        attention_html(scores, queries, keys, path=path, title="A translation")
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1100, "height": 820})
        page.set_default_timeout(120_000)
        page.goto(path.as_uri())
        page.select_option("#layer", label=SHOWN)
        page.wait_for_selector(f"#queries > :nth-child({len(target)})")
        page.hover(f"#queries > [data-place='{POINTED_AT}']")
        page.wait_for_selector("[aria-selected='true']")
        page.screenshot(path=HERE / "visualization_page.png")
        browser.close()


if __name__ == "__main__":
    main()
