"""The example program `examples.translation`, from its command line to its files."""

import ast
import gzip
import importlib.util
import itertools
import json
import os
import subprocess
import sys
import types
import zipfile
from pathlib import Path

import keras
import numpy as np
import pytest

if not all(map(importlib.util.find_spec, ("sentencepiece", "sacrebleu", "sacremoses"))):
    pytest.skip("the example needs the extra `translation`", allow_module_level=True)

import filelock
import sacrebleu

from examples import model_files
from examples.errors import UsageError
from examples.run_directory import RunDirectory
from examples.translation import command as translation
from examples.translation import data as translation_data
from examples.translation import models as translation_models
from examples.translation import prediction as translation_prediction
from examples.translation import recipes as translation_recipes
from examples.translation import sample as translation_sample
from examples.translation import scores as translation_scores
from examples.translation import text
from examples.translation import training as translation_training
from keras_attention import masks

ROOT = Path(__file__).parents[2]
SIZES = {"train": (400, 0), "val": (20, 1), "test_2016_flickr": (20, 2)}
TINY = ["--small", "--vocabulary-size", "500", "--batch-tokens", "512", "--beams", "2"]


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A folder of 400 + 20 + 20 made-up pairs."""
    root = tmp_path_factory.mktemp("data") / "pairs"
    root.mkdir()
    for part, (count, seed) in SIZES.items():
        for language, sentences in zip(
            ("en", "de"), translation_sample.generate(count, seed), strict=True
        ):
            write(root, f"{part}.{language}.gz", sentences)
    return root


def write(root, name, sentences):
    data = "".join(f"{sentence}\n" for sentence in sentences).encode("utf-8")
    (root / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)


def lines(root, name):
    return gzip.decompress((root / name).read_bytes()).decode("utf-8").splitlines()


@pytest.fixture
def broken(folder, tmp_path):
    """A copy of the folder, to be damaged."""
    root = tmp_path / "pairs"
    root.mkdir()
    for path in folder.iterdir():
        (root / path.name).write_bytes(path.read_bytes())
    return root


@pytest.fixture(scope="session")
def tokenizer_model():
    sentences = [*translation_sample.generate(400, 0)[0], *translation_sample.generate(400, 0)[1]]
    return text.learn_tokenizer(sentences, 500)


@pytest.fixture(scope="session")
def tokenizer(tokenizer_model):
    return text.SentencePieceTokenizer(tokenizer_model)


def array(tensor):
    return keras.ops.convert_to_numpy(tensor)


def main(*arguments):
    return translation.main([str(argument) for argument in arguments])


def train(*arguments):
    """`main` with few lengths of batches, for each of which a program is compiled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "LENGTHS", (24, 64))
        return main(*TINY, *arguments)


def figures(output):
    return json.loads((output / "figures.json").read_text(encoding="utf-8"))


def curves(output):
    """What each epoch gave, without the time that it took."""
    timed = ("seconds", "tokens_per_second")
    return [
        {name: value for name, value in epoch.items() if name not in timed}
        for epoch in figures(output)["epochs"]
    ]


# Data


def no_such_folder(root):
    for path in root.iterdir():
        path.unlink()
    root.rmdir()


def unequal(root):
    write(root, "train.de.gz", lines(root, "train.de.gz")[:-1])


def empty(root):
    write(root, "val.de.gz", [])


def empty_line(root):
    write(root, "val.de.gz", ["Ein Hund.", " ", *lines(root, "val.de.gz")[2:]])


def latin_1(root):
    data = "\n".join(["Ein Hund.", "Ein Bär.", *lines(root, "val.de.gz")[2:]]).encode("latin-1")
    (root / "val.de.gz").write_bytes(gzip.compress(data))


def no_gzip(root):
    (root / "train.en.gz").write_bytes(b"A dog.\n")


def cut_short(root):
    (root / "train.en.gz").write_bytes((root / "train.en.gz").read_bytes()[:-20])


def missing(root):
    (root / "test_2016_flickr.de.gz").unlink()


def untranslated(root):
    write(root, "train.de.gz", lines(root, "train.en.gz"))


def shuffled(root):
    order = np.random.default_rng(0).permutation(SIZES["train"][0])
    german = lines(root, "train.de.gz")
    write(root, "train.de.gz", [german[place] for place in order])


def same_parts(root):
    for language in ("en", "de"):
        write(root, f"test_2016_flickr.{language}.gz", lines(root, f"train.{language}.gz"))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (no_such_folder, "is not a directory"),
        (unequal, "train.en.gz has 400 lines and {}/train.de.gz has 399"),
        (empty, "val.de.gz is empty"),
        (empty_line, "val.de.gz has no sentence in line 2"),
        (latin_1, "val.de.gz is not UTF-8 text: invalid continuation byte in line 2"),
        (no_gzip, "train.en.gz is damaged or no gzip file: Not a gzipped file"),
        (cut_short, "train.en.gz is damaged or no gzip file"),
        (missing, "has no test_2016_flickr.de[.gz] or test.de[.gz]. It holds test_2016_flickr.en"),
        (untranslated, "hold the same sentences"),
        (shuffled, "do not seem to belong together"),
        (same_parts, "holds the same sentences in train and test"),
    ],
)
def test_damaged_folder(broken, tmp_path, capsys, damage, message):
    damage(broken)
    output = tmp_path / "run"
    assert main("--data-dir", broken, "--output", output) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ") and message.format(broken) in err
    assert len(err.splitlines()) == 1 and not output.exists()


def test_languages_choose_the_files(folder, broken, capsys):
    there = translation_data.load(folder, "de", "en")
    back = translation_data.load(folder)
    assert there.languages == ("de", "en") and there.train.source == back.train.target
    for arguments, message in (
        (["--target", "fr"], "has no train.fr[.gz]"),
        (["--target", "en"], "are both 'en'"),
    ):
        assert main("--data-dir", broken, *arguments) == 2
        assert message in capsys.readouterr().err


def test_plain_files_and_strange_ends_of_lines(folder, tmp_path):
    expected = translation_data.load(folder)
    for path in folder.iterdir():
        write(tmp_path, path.name.removesuffix(".gz"), lines(folder, path.name))
    # U+0085 and U+2028 stand inside of sentences; a byte-order mark and \r\n belong to none.
    english = ["A\u0085man\u2028sits.", *expected.validation.source[1:]]
    (tmp_path / "val.en").write_bytes("\r\n".join(english).encode("utf-8-sig"))
    found = translation_data.load(tmp_path)
    assert found.train == expected.train and found.test == expected.test
    assert found.validation.source == english


def test_fallback_says_so(monkeypatch):
    def fail(source, target):
        raise ConnectionError(f"no route\nto {source} {target}")

    monkeypatch.setattr(translation_data, "from_tensorflow_datasets", fail)
    dataset = translation_data.load()
    assert "MADE-UP" in dataset.warning and "ConnectionError: no route to pt en" in dataset.warning
    assert dataset.name == "embedded sample (made-up sentences)"


class FakeBuilder:
    """Stands in for TensorFlow Datasets' builder of ted_hrlr_translate."""

    def __init__(self, name):
        self.name = name

    def is_prepared(self):
        return self.name == "ted_hrlr_translate/pt_to_en"

    def download_and_prepare(self):
        raise AssertionError("the download must not start when the host does not answer")

    def as_dataset(self, split, batch_size):
        rows = {"pt": [f"olá {split}", " "], "en": [f"hello {split}", "nothing"]}
        return {name: [row.encode() for row in texts] for name, texts in rows.items()}


def test_tensorflow_datasets_come_before_the_sample(monkeypatch):
    module = types.SimpleNamespace(
        builder=lambda name, **kwargs: FakeBuilder(name), as_numpy=lambda rows: rows
    )
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", module)
    dataset = translation_data.load()
    assert dataset.name == "ted_hrlr_translate (TensorFlow Datasets)"
    assert dataset.train == translation_data.Pairs(["olá train"], ["hello train"])

    def refuse(address, timeout):
        raise OSError("unreachable")

    monkeypatch.setattr(translation_data.socket, "create_connection", refuse)
    monkeypatch.setattr(translation_data.urllib.request, "getproxies", dict)
    assert "OSError: unreachable" in translation_data.load(source="az", target="en").warning


def test_sample_is_reproducible_and_has_endings():
    pairs = translation_sample.generate(500, 3)
    assert pairs == translation_sample.generate(500, 3) != translation_sample.generate(500, 4)
    translations = dict(zip(*pairs, strict=True))
    for english, german in translations.items():
        assert ("Two" in english) == ("Zwei" in german)
        assert not ("Ein " in german and "Frau " in german)
    limited = translation_data.Pairs(*pairs).limited(20, 0)
    assert len(limited) == 20 and all(
        translations[e] == g for e, g in zip(limited.source, limited.target, strict=True)
    )


# Subwords and batches


STRANGE = [
    "Zoë läuft für 5 € durch die Straße.",
    "日本 🙂",
    "A\u00a0B",
    "<s> ▁ </s>",
    "x" * 300,
    "",
]


def test_what_is_decoded_is_what_was_encoded(tokenizer):
    sentences = [*translation_sample.generate(50, 9)[1], *STRANGE[:3], *STRANGE[4:]]
    assert text.decode(tokenizer, text.encode(tokenizer, sentences)) == sentences
    rows = text.encode(tokenizer, STRANGE)
    assert all(token > text.STOP for row in rows for token in row)
    stopped = [[*row, text.STOP, 77, text.PADDING] for row in text.encode(tokenizer, sentences)]
    assert text.decode(tokenizer, stopped) == sentences
    assert text.decode(tokenizer, text.encode(tokenizer, ["a\0b", " a   b "])) == ["a b", "a b"]


def test_small_texts_have_small_vocabularies():
    tokenizer = text.SentencePieceTokenizer(text.learn_tokenizer(["ein hund", "a dog"], 6000))
    assert tokenizer.vocabulary_size() < 400
    with pytest.raises(UsageError, match="No vocabulary of 100 subwords"):
        text.learn_tokenizer(["ein hund", "a dog"], 100)


def test_words_and_what_is_known(tokenizer):
    assert text.words(" A man, ?! 3 ") == ["A", "man,", "3"] and text.words("?! …") == []
    assert all(map(tokenizer.knows, ["A man runs.", "日本 man", "A", "Männer"]))
    assert not any(map(tokenizer.knows, ["", "?!", "日本", "日本 語", "Ωμέγα"]))


def some_pairs(count, longest):
    """Pairs of lengths between 1 and `longest`."""
    rng = np.random.default_rng(0)
    sides = [[[5] * n for n in rng.integers(1, longest + 1, size=count)] for _ in range(2)]
    return text.EncodedPairs(*sides)


@pytest.mark.parametrize("few_shapes", [False, True])
def test_every_pair_is_in_one_batch_of_its_length(few_shapes):
    pairs = some_pairs(500, 60)
    found = text.batches(pairs, np.arange(500), 256, few_shapes)
    assert sorted(place for batch in found for place in batch.indices) == list(range(500))
    for number, batch in enumerate(found):
        rows, source, target = batch.shape
        longest = pairs.sides[:, batch.indices].max(axis=1).tolist()
        assert rows == 1 or rows * max(source, target) <= 256
        if few_shapes:
            assert source == target in text.LENGTHS and max(longest) <= source
            assert rows == text.rows_of(source, 256) or number == len(found) - 1
        else:
            assert [source, target] == longest
    if not few_shapes:
        # Like lengths are together: hardly any place of a target is padding.
        places = sum(np.prod(batch.shape[::2]) for batch in found)
        assert pairs.sides[1].sum() > 0.9 * places


def test_a_pair_longer_than_a_batch_is_a_batch():
    pairs = text.EncodedPairs([[5] * 90, [5]], [[5], [5]])
    assert [batch.shape for batch in text.batches(pairs, [0, 1], 64)] == [(1, 2, 2), (1, 91, 2)]


def test_the_order_of_an_epoch_depends_on_the_generator():
    pairs = some_pairs(300, 100)
    found, again, other = (
        [
            batch.indices.tolist()
            for batch in text.training_batches(pairs, 256, np.random.default_rng(seed))
        ]
        for seed in (1, 1, 2)
    )
    assert found == again != other
    seen = sorted(itertools.chain(*found))
    assert seen == sorted(itertools.chain(*other)) == pairs.not_too_long().tolist()
    assert pairs.lengths[seen].max() <= text.LENGTHS[-1] < pairs.lengths.max()


def test_a_batch_is_shifted_by_one():
    pairs = text.EncodedPairs([[5, 6], [5]], [[7, 8, 9], [7]])
    (source, given), wanted = text.Batch(np.array([0, 1]), 4, 5).arrays(pairs)
    assert source.tolist() == [[5, 6, 3, 0], [5, 3, 0, 0]]
    assert given.tolist() == [[2, 7, 8, 9, 0], [2, 7, 0, 0, 0]]
    assert wanted.tolist() == [[7, 8, 9, 3, 0], [7, 3, 0, 0, 0]]


@pytest.mark.parametrize("sizes", [(5, 5), (1, 5), (5, 1), (1, 1), (2, 2)])
def test_the_first_batches_show_what_varies(sizes):
    rng = np.random.default_rng(0)
    for _ in range(50):
        lengths = [tuple(int(rng.integers(1, 1 + size)) for size in sizes) for _ in range(4)]
        batches = [text.Batch(np.arange(2), *both) for both in lengths]
        found = translation_training._varied_first(batches)
        assert sorted(map(id, found)) == sorted(map(id, batches))
        first, second = (batch.shape[1:] for batch in found[:2])
        for side in range(2):
            assert (first[side] == second[side]) == (len({both[side] for both in lengths}) == 1)


# Models


def tiny(name, tokenizer_model, positions=None):
    recipe = translation_recipes.RECIPES[name]
    return translation_models.build(recipe, tokenizer_model, 0.2, True, positions)


@pytest.mark.parametrize(
    "name, positions",
    [
        *((name, None) for name in translation.MODELS),
        *(("transformer", p) for p in ("rotary", "sin-cos")),
    ],
)
def test_steps_are_the_training_graph(name, positions, tokenizer, tokenizer_model, tmp_path):
    model = tiny(name, tokenizer_model, positions)
    english, german = translation_sample.generate(3, 5)
    pairs = text.encode_pairs(tokenizer, translation_data.Pairs(english, german))
    (source, given), _ = text.Batch(np.arange(3), 16, 16).arrays(pairs)
    whole = array(model((source, given)))
    cache, memory = model.start(keras.ops.convert_to_tensor(source), 16)
    shortest = min(len(row) for row in pairs.target) + 1
    for place in range(3):
        logits, cache = model.step(keras.ops.convert_to_tensor(given[:, place]), cache, memory)
        np.testing.assert_allclose(array(logits), whole[:, place], atol=2e-5)
    assert shortest > 3 and np.abs(whole[:, 1] - whole[:, 2]).max() > 1e-2

    # And the file holds all of it, subwords included.
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(array(loaded((source, given))), whole, atol=1e-6)
    assert text.encode(loaded.tokenizer, german) == pairs.target


@pytest.mark.parametrize("extra", [1, 5])
@pytest.mark.parametrize(
    "name, positions",
    [("transformer", p) for p in translation.POSITIONS] + [("bahdanau", None), ("luong", None)],
)
def test_padding_changes_nothing_and_gets_no_weight(name, positions, extra, tokenizer_model):
    model = tiny(name, tokenizer_model, positions)
    source = np.array([[5, 6, 7, 8, 3], [9, 5, 3, 0, 0]], "int32")
    given = np.array([[2, 7, 9, 11], [2, 8, 0, 0]], "int32")
    real = given != 0

    def pad(tokens):
        return np.pad(tokens, [(0, 0), (0, extra)])

    outputs = array(model((source, given)))
    padded = array(model((pad(source), pad(given))))
    np.testing.assert_allclose(padded[:, :4][real], outputs[real], atol=1e-5)
    # The second row's sentence alone is as long as it is.
    alone = array(model((source[1:, :3], given[1:, :2])))
    np.testing.assert_allclose(outputs[1, :2], alone[0], atol=1e-5)

    weights = array(model.alignments(pad(source), pad(given)))
    assert weights.shape == (2, 4 + extra, 5 + extra)
    np.testing.assert_allclose(weights[:, :4].sum(-1)[real], 1, atol=1e-5)
    for row, length in enumerate((5, 3)):
        tokens = real[row].sum()
        assert (weights[row, :tokens, :length] > 0).all()
        assert (weights[row, :tokens, length:] == 0).all()

    # Decoding step by step, from a padded sentence.
    steps = [model.start(keras.ops.convert_to_tensor(x), 6) for x in (source, pad(source))]
    for token in ([2, 2], [7, 8]):
        logits = []
        for number, (cache, memory) in enumerate(steps):
            said, cache = model.step(keras.ops.convert_to_tensor(token), cache, memory)
            steps[number] = cache, memory
            logits.append(array(said))
        np.testing.assert_allclose(logits[1], logits[0], atol=1e-5)


@pytest.mark.parametrize("name", translation.MODELS)
def test_masks_are_kept_through_every_layer(name, tokenizer_model, monkeypatch):
    model = tiny(name, tokenizer_model)
    source = np.array([[5, 6, 3, 0]], "int32")
    given = np.array([[2, 7, 9, 0, 0, 0]], "int32")
    seen, call = [], keras.layers.Layer.__call__

    def spy(layer, *args, **kwargs):
        output = call(layer, *args, **kwargs)
        first = output[0] if isinstance(output, (list, tuple)) else output
        if len(first.shape) == 3:
            seen.append((layer, first.shape[1], masks.implicit(first)))
        return output

    children = [layer for layer in model.layers if layer is not model.tokenizer]
    monkeypatch.setattr(keras.layers.Layer, "__call__", spy)
    model((source, given), training=True)
    for child in children:
        found = [(length, mask) for layer, length, mask in seen if layer is child]
        assert found or child.name == "bridge", child.name
        for length, mask in found:
            tokens = source if length == 4 else given
            assert mask is not None and (array(mask) == (tokens != 0)).all(), child.name


def test_files_of_earlier_versions_load(tokenizer_model, tmp_path):
    model = tiny("transformer", tokenizer_model)
    model.save(tmp_path / "model.keras")
    inputs = np.array([[5, 6, 3]]), np.array([[2, 7]])
    # They had KerasHub's layer of this name, and said nothing of what they need.
    with (
        zipfile.ZipFile(tmp_path / "model.keras") as new,
        zipfile.ZipFile(tmp_path / "old.keras", "w") as old,
    ):
        assert "assets/layers/sentence_piece_tokenizer/vocabulary.spm" in new.namelist()
        for member in new.namelist():
            data = new.read(member)
            if member == "config.json":
                config = json.loads(data)
                assert "sentencepiece" in config["config"].pop("needs")
                data = json.dumps(config)
            old.writestr(member, data)
    loaded = model_files.load(tmp_path / "old.keras")
    np.testing.assert_allclose(array(loaded(inputs)), array(model(inputs)), atol=1e-6)
    assert loaded.tokenizer.proto == tokenizer_model


@pytest.mark.parametrize("schedule", translation.SCHEDULES)
def test_schedules_rise_to_the_rate_and_fall(schedule):
    optimizer = translation_models.optimizer(2e-3, 100, schedule, 1000)
    rates = [float(optimizer._learning_rate(step)) for step in (1, 50, 100, 500, 1000)]
    np.testing.assert_allclose(rates[2], 2e-3, rtol=1e-4)
    assert rates[0] < rates[1] < rates[2] > rates[3] > rates[4]
    assert (rates[4] < 1e-6) == (schedule == "cosine")


def test_positions_have_names():
    assert (*translation_models.IN_BLOCKS, "sin-cos") == translation.POSITIONS
    assert translation_recipes.RECIPES["transformer"].positions == translation.POSITIONS[0]


def test_positions_know_the_order_of_words(tokenizer_model):
    source, given = np.array([[5, 6, 7, 8]]), np.array([[2]])
    for positions in translation.POSITIONS:
        model = tiny("transformer", tokenizer_model, positions)
        after, turned = model((source, given)), model((source[:, ::-1], given))
        # Without positions a reversed sentence would be the same to the decoder.
        assert np.abs(array(after) - array(turned)).max() > 1e-3, positions


def test_the_loss_of_evaluation_is_of_sentences(tokenizer_model):
    model = tiny("luong", tokenizer_model)
    logits = keras.random.normal((2, 3, 7), seed=0)
    wanted = np.array([[4, 5, 3], [6, 3, 0]])
    chosen = array(keras.ops.log_softmax(logits))[[0, 0, 0, 1, 1], [0, 1, 2, 0, 1], [4, 5, 3, 6, 3]]
    loss = model.compute_loss(y=keras.ops.convert_to_tensor(wanted), y_pred=logits, training=False)
    np.testing.assert_allclose(float(loss), -chosen.sum() / 2, rtol=1e-5)


# Scores


def test_both_bleus():
    references = ['Ein Mann sagt: "Hallo."', "Die Frau läuft schnell über die Straße."]
    same, signatures = translation_scores.scores(references, references, "de")
    np.testing.assert_allclose(list(same.values()), 100)
    assert "case:mixed" in signatures["bleu"] and "tok:13a" in signatures["bleu"]
    assert "tok:none" in signatures["tokenized_bleu"]
    # Case and the kind of quotation marks count for the first alone.
    other = ["ein mann sagt: „Hallo.“", "die frau läuft schnell über die straße."]
    scores, _ = translation_scores.scores(other, references, "de")
    np.testing.assert_allclose(scores["tokenized_bleu"], 100)
    assert 10 < scores["bleu"] < 70
    assert translation_scores.tokenized(references[:1], "de") == ['ein mann sagt : " hallo . "']
    assert translation_scores.tokenized(["Olá, Mundo."], "xx") == ["olá , mundo ."]


# Progress


@pytest.mark.parametrize("terminal", [False, True])
def test_progress(terminal, monkeypatch, capsys):
    now = [0.0]
    clock = types.SimpleNamespace(perf_counter=lambda: now[0])
    monkeypatch.setattr(translation_training, "time", clock)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    batches = types.SimpleNamespace(tokens=[600, 600, 1200, 600])
    progress = translation_training.Progress(batches)
    progress.on_epoch_begin(1)
    for step in range(4):
        progress.on_train_batch_begin(step)
        now[0] += 40
        progress.on_train_batch_end(step, {"loss": 4.0 - step})
    progress.on_epoch_end(1)
    out = capsys.readouterr().out
    # Steps end after 40, 80, 120 and 160 s: one line in a minute, that of 80 s.
    line = "step 2/4  loss 3.000  15 tokens/s  1:20 left\n"
    if terminal:
        assert out.count("\r") == 4 and "2/4  loss 3.000  15 tokens/s  1:20 left" in out
    else:
        assert out == f"epoch 2, {line}epoch 2, step 4/4  loss 1.000  19 tokens/s  0:00 left\n"
    assert progress.seconds == 160


# The program


@pytest.fixture(scope="session")
def finished(folder, tmp_path_factory):
    """The output of an uninterrupted run of two epochs, one for all workers of pytest-xdist."""
    root = tmp_path_factory.getbasetemp()
    output = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "finished"
    # The second worker finds the run finished.
    with filelock.FileLock(f"{output}.lock"):
        assert train("--epochs", "2", "--data-dir", folder, "--output", output) == 0
    return output


@pytest.mark.slow
def test_the_run_leaves_what_it_says(folder, finished):
    said = figures(finished)
    assert said["finished"] and said["sizes"] == {"train": 400, "validation": 20, "test": 20}
    assert {path.name for path in finished.iterdir()} == {
        "alignment.png",
        "curves.png",
        "figures.json",
        "model.keras",
        "test.txt",
        "tokenizer.spm",
    }
    translations = (finished / "test.txt").read_text(encoding="utf-8").split("\n")[:-1]
    references = [lines(folder, "test_2016_flickr.de.gz")]
    score = sacrebleu.corpus_bleu(translations, references).score
    np.testing.assert_allclose(said["test_bleu"], score)
    assert said["tokenized_bleu_signature"].endswith(sacrebleu.__version__)
    words, right = (
        translation_scores.tokenized(sentences, "de") for sentences in (translations, *references)
    )
    score = sacrebleu.corpus_bleu(words, [right], tokenize="none").score
    np.testing.assert_allclose(said["test_tokenized_bleu"], score)
    model = translation_prediction.load(finished, "examples.translation")
    # The model that is kept has the mean of the weights, which the last epoch was measured with.
    pairs = text.encode_pairs(
        model.tokenizer,
        translation_data.Pairs(lines(folder, "val.en.gz"), lines(folder, "val.de.gz")),
    )
    total = 0.0
    for place in range(20):
        batch = text.Batch(np.array([place]), *pairs.sides[:, place].tolist())
        inputs, wanted = batch.arrays(pairs)
        logits = keras.ops.log_softmax(model(inputs), axis=-1)
        total -= np.take_along_axis(array(logits), wanted[..., None], axis=-1).sum()
    loss = said["epochs"][-1]["validation_loss"]
    np.testing.assert_allclose(loss, total / pairs.sides[1].sum(), rtol=1e-4)
    greedily = translation_prediction.Translate(model, 1)(lines(folder, "test_2016_flickr.en.gz"))
    score = sacrebleu.corpus_bleu(greedily, references).score
    np.testing.assert_allclose(said["test_greedy_bleu"], score)
    assert said["bleu_signature"].startswith("nrefs:1|case:mixed|")
    losses = [epoch["train_loss"] for epoch in said["epochs"]]
    assert losses[1] < losses[0] and all(epoch["tokens_per_second"] for epoch in said["epochs"])


@pytest.mark.slow
def test_interrupted_run_resumes_to_the_same_figures(
    folder, finished, tmp_path, monkeypatch, capsys
):
    output = tmp_path / "run"
    # Without a search, which takes as long to compile as all else.
    command = ["--epochs", 2, "--data-dir", folder, "--output", output, "--beams", 1]
    finish_epoch = RunDirectory.finish_epoch

    def interrupt(run, model, epoch):
        if len(run.epochs) == 1:
            raise KeyboardInterrupt
        finish_epoch(run, model, epoch)

    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "finish_epoch", interrupt)
        assert train(*command) == 130
    assert curves(output) == curves(finished)[:1]
    assert train(*command) == 0
    assert "Resuming after epoch 1" in capsys.readouterr().out
    assert curves(output) == curves(finished)
    bleu = "test_greedy_bleu"
    assert figures(output)[bleu] == figures(output)["test_bleu"] == figures(finished)[bleu]


@pytest.mark.slow
def test_the_moving_mean_does_not_change_the_training(folder, finished, tmp_path, monkeypatch):
    """Keras's `fit` replaces weights by their moving mean when it ends."""
    monkeypatch.setattr(translation_models, "AVERAGED_STEPS", 1.5)
    output = tmp_path / "run"
    assert train("--epochs", 2, "--data-dir", folder, "--output", output, "--beams", 1) == 0
    runs = figures(finished)["epochs"], figures(output)["epochs"]
    for first, second in zip(*runs, strict=True):
        np.testing.assert_allclose(first["train_loss"], second["train_loss"], rtol=1e-5)
        assert abs(first["validation_loss"] - second["validation_loss"]) > 1e-3


@pytest.mark.slow
def test_a_fresh_process_translates(folder, finished, tmp_path):
    english = lines(folder, "test_2016_flickr.en.gz")[:3]
    picture = tmp_path / "alignment.png"
    unknown = ["", "日本"]
    command = [sys.executable, "-m", "examples.translation", "translate", str(finished)]
    backend = keras.backend.backend()
    environment = {**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": str(ROOT)}
    # What TensorFlow would say at its start.
    environment.pop("TF_CPP_MIN_LOG_LEVEL", None)
    done = subprocess.run(
        [*command, *unknown, *english, "--beams", "2", "--picture", str(picture)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    expected = (finished / "test.txt").read_text(encoding="utf-8").split("\n")[:3]
    assert done.stdout.split("\n")[:-1] == ["", "", *expected]
    assert done.stderr.splitlines() == [
        "'' has no words, so it is not translated.",
        "'日本' has no words that the model has seen, so it is not translated.",
    ]
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_other_settings_and_finished_runs(folder, finished, capsys):
    command = [*TINY, "--data-dir", folder, "--output", finished]
    assert main(*command, "--epochs", 3) == 2
    assert "epochs is 2 there and 3 now" in capsys.readouterr().err
    assert main(*command, "--epochs", 2, "--target", "de") == 0
    assert "finished already" in capsys.readouterr().out
    assert main(*command, "--epochs", 2, "--source", "de", "--target", "en") == 2
    assert "languages is ['en', 'de'] there" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bahdanau", "luong"])
def test_recurrent_models_run(folder, tmp_path, name):
    output = tmp_path / name
    command = ["--limit", 60, "--epochs", 1, "--data-dir", folder, "--output", output]
    assert train(*command, "--model", name) == 0
    assert figures(output)["finished"] and (output / "alignment.png").exists()


# The command line


@pytest.mark.parametrize(
    "arguments",
    [
        ["--model", "other"],
        ["--epochs", "0"],
        ["--vocabulary-size", "10"],
        ["--dropout", "1"],
        ["--positions", "none"],
        ["--learning-rate", "0"],
        ["--schedule", "constant"],
        ["--data-dir", "x", "--sample"],
        ["translate"],
        ["translate", "runs/translation-transformer"],
        ["translate", "runs/translation-transformer", "Hello.", "--beams", "0"],
    ],
    ids=" ".join,
)
def test_wrong_command_line(arguments, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(*arguments)
    assert exit_.value.code == 2 and "usage: " in capsys.readouterr().err


def test_positions_of_recurrent_models_are_refused(tmp_path, capsys):
    assert main("--model", "luong", "--positions", "shaw", "--output", tmp_path / "x") == 2
    assert "--positions is for the transformer" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["--sample"], ["translate", "{}", "A man."]])
def test_a_missing_package_is_named_with_all_others(command, monkeypatch, tmp_path, capsys):
    with RunDirectory(tmp_path / "run", translation.PROGRAM) as run:
        run.begin({})
        run.finish()
    keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]).save(
        tmp_path / "run" / "model.keras"
    )

    def fail(name):
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(translation, "importlib", types.SimpleNamespace(import_module=fail))
    assert main(*(part.format(tmp_path / "run") for part in command)) == 2
    err = capsys.readouterr().err
    assert "No module named 'keras'" in err and err.count("\n") == 1
    assert "pip install filelock sentencepiece sacrebleu sacremoses matplotlib" in err


@pytest.mark.skipif(keras.backend.backend() == "tensorflow", reason="it is TensorFlow")
def test_other_backends_need_no_tensorflow(tmp_path):
    program = (
        "import sys\n"
        "for name in ('tensorflow', 'tensorflow_text', 'tensorflow_datasets', 'keras_hub'):\n"
        "    sys.modules[name] = None\n"
        "from examples.translation import training, text\n"
        "proto = text.learn_tokenizer(['ein hund', 'a dog'], 400)\n"
        "tokenizer = text.SentencePieceTokenizer(proto)\n"
        "print(text.decode(tokenizer, text.encode(tokenizer, ['a dog'])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "['a dog']\n"


def test_what_is_imported_is_what_is_named():
    imported = set()
    for path in [*ROOT.glob("examples/translation/*.py"), ROOT / "examples/run_directory.py"]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(node.module.split(".")[0])
    # The backend, and one source of sentences among others.
    given = {"keras", "numpy", "keras_attention", "examples", "tensorflow", "tensorflow_datasets"}
    assert imported - given - sys.stdlib_module_names == set(translation.PACKAGES)
    assert f"pip install {' '.join(translation.PACKAGES)}\n" in translation.__doc__
    setup = (ROOT / "setup.py").read_text(encoding="utf-8")
    extras = setup[setup.index("EXAMPLES = [") : setup.index("setup(")]
    assert all(f'"{package}' in extras for package in translation.PACKAGES)


def test_translate_without_a_usable_model(tmp_path, capsys):
    assert main("translate", tmp_path / "nowhere", "Hello.") == 2
    assert "figures.json cannot be read" in capsys.readouterr().err
    run = RunDirectory(tmp_path / "run", translation.PROGRAM)
    run.begin({})
    assert main("translate", tmp_path / "run", "Hello.") == 2
    assert "is not finished (0 epochs so far)" in capsys.readouterr().err
    run.finish()
    run.close()
    assert main("translate", tmp_path / "run", "Hello.") == 2
    assert "model.keras cannot be read: No such file" in capsys.readouterr().err
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.save(tmp_path / "run" / "model.keras")
    assert main("translate", tmp_path / "run", "Hello.") == 2
    assert "it is a Sequential" in capsys.readouterr().err
    assert main("translate", tmp_path / "run" / "model.keras", "Hello.") == 2
    assert f"Give the folder that it is in: {tmp_path / 'run'}" in capsys.readouterr().err
    assert main("translate", tmp_path / "run", "Hello.", tmp_path / "run") == 2
    assert "is a folder, and was given as a sentence" in capsys.readouterr().err
    (tmp_path / "run" / "model.keras").write_bytes(bytes(1000))
    assert main("translate", tmp_path / "run", "Hello.") == 2
    assert "model.keras holds zeros" in capsys.readouterr().err
