"""`attention_html`: what the file contains."""

import base64
import json
import re
import zlib

import keras
import numpy as np
import pytest

from keras_attention.visualization import attention_html
from tests.visualization.small_page import ODD, SOURCE, TARGET, weights


def data_of(page):
    return json.loads(re.search(r'id="data">(.*?)</script>', page).group(1))


def stored(page, layer, head):
    """The weights that a page holds, read back as its script reads them."""
    data = data_of(page)
    text = re.search(rf'id="weights-{layer}-{head}">([^<]*)<', page).group(1)
    packed = zlib.decompress(base64.b64decode(text))
    rows = len(data["texts"][data["layers"][layer]["queries"]])
    largest = np.frombuffer(packed[: 4 * rows], "<f4")
    kinds = {65535: "<u2", 255: "u1", 32767: "<i2", 127: "i1"}
    levels = np.frombuffer(packed[4 * rows :], kinds[data["levels"]])
    return levels.reshape(rows, -1) / data["levels"] * largest[:, None]


# The file


@pytest.mark.parametrize(
    "size, least, levels, error",
    [(6, 0, 65535, 1e-5), (1001, 0, 255, 1 / 500), (6, 1, 32767, 2e-5), (1001, 1, 127, 1 / 250)],
)
def test_weights_are_right_to_the_levels_of_their_row(size, least, levels, error):
    scores = weights(size, size) - least
    scores[1] = 0
    page = attention_html(scores, None)
    assert data_of(page)["levels"] == levels
    difference = np.abs(stored(page, 0, 0) - scores)
    assert (difference <= error * np.abs(scores).max(axis=-1, keepdims=True)).all()
    assert not stored(page, 0, 0)[1].any()


def test_the_file_is_what_is_returned(tmp_path):
    page = attention_html(weights(2, 3, 3), ["a", "b", "\ud800"], path=tmp_path / "page.html")
    assert (tmp_path / "page.html").read_bytes() == page.encode("utf-8")


def test_a_page_reaches_for_nothing_outside_itself():
    page = attention_html(weights(3, 3), ["a", "b", "c"])
    page = re.sub(r'(id="weights-0-0">)[^<]*', r"\1", page)  # Where "//" may be two digits.
    assert "default-src 'none'" in page
    assert not re.search(
        r"https?:|//[a-z]|@import|\bfetch\(|<link(?! rel=\"icon\" href=\"data:)", page
    )


def test_words_cannot_leave_their_place():
    page = attention_html(weights(14, 14), ODD, title="</title><script>x</script>")
    plain = attention_html(weights(14, 14), [str(n) for n in range(14)])
    for tag in ("<script", "</script", "<b>", "<!--"):
        assert page.count(tag) == plain.count(tag)
    assert not re.search("[\u2028\u2029\u202a-\u202e\ud800-\udfff]", page)


def test_layers_have_words_of_their_own_by_name():
    scores = {"decoder/attention": weights(1, 4, 6, 6), "decoder/cross_attention": weights(4, 6, 7)}
    # The second by its name in 0.1.0.
    keys = {"decoder/attention": None, "decoder/context_attention": SOURCE}
    data = data_of(attention_html(scores, dict.fromkeys(scores, TARGET), keys))
    assert [layer["name"] for layer in data["layers"]] == list(scores)
    assert [(layer["queries"], layer["keys"]) for layer in data["layers"]] == [(0, 0), (0, 1)]
    assert data["texts"] == [TARGET, SOURCE]


def test_padding_is_left_out_and_said_as_a_share_of_its_query():
    scores = weights(2, 3, 4)
    page = attention_html(scores, ["a", None, "b"], [None, "x", "y", None])
    assert data_of(page)["texts"] == [["a", "b"], ["x", "y"]]
    np.testing.assert_allclose(stored(page, 0, 1), scores[1][[0, 2], 1:3], atol=2e-5)
    expected = scores[:, [0, 2]][..., [0, 3]].sum(axis=-1) / scores[:, [0, 2]].sum(axis=-1)
    np.testing.assert_allclose(data_of(page)["layers"][0]["others"], expected, atol=1e-4)
    page = attention_html(scores, ["a", None, "b"], ["w", "x", "y", "z"])
    assert data_of(page)["layers"][0]["others"] is None


def test_a_layer_that_pools_needs_no_words_for_its_queries():
    scores = {"block": weights(2, 7, 7), "one": weights(1, 1, 7), "two": weights(1, 2, 7)}
    data = data_of(attention_html(scores, SOURCE))
    assert [layer["pools"] for layer in data["layers"]] == [False, True, True]
    sides = [
        [data["texts"][layer[side]] for side in ("queries", "keys")] for layer in data["layers"]
    ]
    assert sides == [
        [SOURCE, SOURCE],
        [["learned query"], SOURCE],
        [["query 1", "query 2"], SOURCE],
    ]
    keys_alone = attention_html({"one": scores["one"]}, None, SOURCE)
    assert data_of(keys_alone)["layers"][0]["pools"]


@pytest.mark.parametrize("library", ["keras", "torch", "ml_dtypes"])
def test_weights_in_bfloat16(library):
    rounded = keras.ops.cast(weights(2, 3, 3), "bfloat16")
    exact = keras.ops.convert_to_numpy(keras.ops.cast(rounded, "float32"))
    if library == "torch":
        rounded = pytest.importorskip("torch").tensor(exact).bfloat16().requires_grad_()
    elif library == "ml_dtypes":
        rounded = exact.astype(pytest.importorskip("ml_dtypes").bfloat16)
    page = attention_html([rounded[None]], ["a", "b", "c"])
    np.testing.assert_allclose(stored(page, 0, 1), exact[1], atol=2e-5)
