"""What the examples share: the command line, the folder of a run, resuming, texts, devices."""

import argparse
import contextlib
import gzip
from pathlib import Path

import keras
import numpy as np
import pytest

from examples import shared, texts, training
from examples.shared import Run, UsageError
from tests.examples.conftest import figures

ROOT = Path(__file__).parents[2]
PROGRAM = "examples.test"
SENTENCES = ["A dog sleeps.", "A dog and a cat play; the cat sleeps.", "Dogs don't play chess."] * 9


def contents(path):
    return {file.name: file.read_bytes() for file in path.iterdir()} if path.is_dir() else None


def test_the_examples_are_short():
    paths = (ROOT / "examples").glob("*.py")
    lengths = [len(path.read_text(encoding="utf-8").splitlines()) for path in paths]
    assert max(lengths) <= 315 and sum(lengths) <= 2900


# The command line


@pytest.mark.parametrize(
    ("raised", "status", "message"),
    [
        (None, 0, ""),
        (UsageError("No such dog."), 2, "error: No such dog.\n"),
        (OSError(36, "File name too long", "x"), 2, "error: [Errno 36] File name too long: 'x'\n"),
        (ImportError("No dogs"), 2, 'error: No dogs: pip install -e ".[examples]" has it.\n'),
        (BrokenPipeError(), 141, ""),
        (KeyboardInterrupt(), 130, "\nInterrupted. The same command goes on from there.\n"),
    ],
)
def test_exit_status(raised, status, message, capsys, monkeypatch):
    monkeypatch.setattr(shared.os, "dup2", lambda *descriptors: None)

    def command(arguments):
        assert arguments == ["--seed", "3"]
        if raised:
            raise raised

    assert shared.program(command)(["--seed", 3]) == status
    assert capsys.readouterr().err == message


@pytest.mark.parametrize(
    ("kind", "right", "wrong"),
    [
        (shared.at_least(2), ("2", "7"), ("1", "2.5", "two")),
        (shared.fraction, ("0", "0.5"), ("1", "-0.1", "nan", "half")),
        (shared.positive, ("1e-4", "3"), ("0", "inf", "nan", "-1")),
    ],
)
def test_types_of_options(kind, right, wrong):
    for text in right:
        assert kind(text) == float(text)
    for text in wrong:
        with pytest.raises((argparse.ArgumentTypeError, ValueError)):
            kind(text)


# Texts of files


def test_gzipped_texts(tmp_path):
    path = tmp_path / "text.gz"
    path.write_bytes(gzip.compress(bytes(10**6)))
    assert path.stat().st_size < 2000 and len(shared.read_text(path, 10**6)) == 10**6
    with pytest.raises(UsageError, match="it holds more than 999,999 bytes"):
        shared.read_text(path, 10**6 - 1)
    for data in (b"no gzip", path.read_bytes()[:100]):
        path.write_bytes(data)
        with pytest.raises(UsageError, match="damaged or no gzip file"):
            shared.read_text(path)


# The folder of a run


def test_settings_are_those_of_the_run(tmp_path):
    with Run(tmp_path / "a" / "run", PROGRAM, {"seed": 0}) as run:
        assert not run.finished and not (tmp_path / "a").exists()
        run.begin({"sizes": (1, 2)}, source="sample")
        run.finish_epoch(loss=1.0)
        run.finish(accuracy=0.5)
    said = figures(run.path)
    assert said["settings"] == {"seed": 0, "sizes": [1, 2]} and said["epochs"] == [{"loss": 1.0}]
    assert said["source"] == "sample" and said["accuracy"] == 0.5 and said["finished"]
    assert {"keras", "python", "numpy", "keras_attention"} < set(said["versions"])
    assert set(contents(run.path)) == {"figures.json"}
    assert Run(run.path, PROGRAM, {"seed": 0, "sizes": (1, 2)}).finished
    with pytest.raises(UsageError, match="other settings: seed is 0 there and 1 now"):
        Run(run.path, PROGRAM, {"seed": 1})
    with pytest.raises(UsageError, match=r"sizes is \[1, 2\] there and 3 now"):
        Run(run.path, PROGRAM, {"seed": 0}).begin({"sizes": 3})


def test_settings_of_no_epoch_are_forgotten(tmp_path):
    """A mistake that shows only when the data are read can be put right in the same folder."""
    with Run(tmp_path, PROGRAM, {"context": 128}) as run:
        run.begin({"text": 1})
        run.write("tokenizer.json", lambda path: path.write_text("of 128"))
    with Run(tmp_path, PROGRAM, {"context": 32}) as run:
        run.begin({"text": 2})
        assert run.figures["settings"] == {"context": 32, "text": 2}
        assert not (tmp_path / "tokenizer.json").exists()
        run.finish_epoch(loss=1.0)
    with pytest.raises(UsageError, match="context is 32 there and 16 now"):
        Run(tmp_path, PROGRAM, {"context": 16})


def test_one_run_a_folder(tmp_path):
    with Run(tmp_path, PROGRAM, {}) as run, Run(tmp_path, PROGRAM, {}) as other:
        run.begin()
        with pytest.raises(UsageError, match=f"Another process is writing to --output {tmp_path}"):
            other.begin()
    with Run(tmp_path, PROGRAM, {}) as other:
        other.begin()


@pytest.mark.parametrize(
    ("place", "file", "text", "message"),
    [
        ("runs", "runs", "mine", "is a file"),
        ("runs/run", "runs", "mine", "Not a directory"),
        ("runs", "runs/thesis.tex", "mine", "is not a run of examples.test: it holds thesis.tex"),
        *(
            ("runs", "runs/figures.json", text, "is damaged, or of another program")
            for text in (
                '{"program": "other"}',
                '{"program": "exam',
                "7",
                f'{{"program": "{PROGRAM}"}}',
            )
        ),
    ],
)
def test_what_is_there_is_left_alone(tmp_path, place, file, text, message):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(text)
    before = contents(tmp_path / "runs")
    with pytest.raises((UsageError, OSError), match=message):
        Run(tmp_path / place, PROGRAM, {}).begin()
    assert contents(tmp_path / "runs") == before and (tmp_path / file).read_text() == text


def test_a_failed_write_leaves_the_old_file(tmp_path):
    def fail(path):
        path.write_text("half")
        raise OSError("disk full")

    with Run(tmp_path, PROGRAM, {}) as run:
        run.begin()
        before = contents(tmp_path)["figures.json"]
        with pytest.raises(OSError, match="disk full"):
            run.write("figures.json", fail)
    assert contents(tmp_path)["figures.json"] == before
    with Run(tmp_path, PROGRAM, {}) as run:
        run.begin()


# Training


def make(adapters=False):
    """A compiled model with dropout, made as at the start of each process."""
    keras.utils.set_random_seed(0)
    x = keras.Input((3,))
    layer = keras.layers.Dense(4, activation="tanh")
    model = keras.Model(x, keras.layers.Dense(1)(keras.layers.Dropout(0.5)(layer(x))))
    if adapters:
        layer.enable_lora(2)
    # XLA and PyTorch's compiler would take longer than all else; on JAX, all operations alone do.
    jit = keras.backend.backend() == "jax"
    model.compile(keras.optimizers.Adam(0.1), "mse", jit_compile=jit)
    return model


def train(path, epochs=3, adapters=False):
    """A run as the examples do it; returns the weights that it ends with."""
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(12, n)).astype("float32") for n in (3, 1))
    with Run(path, PROGRAM, {"seed": 7}) as run:
        run.begin()
        model = make(adapters)
        batches = training.Batches(
            lambda rng: np.split(rng.permutation(12), 3), lambda rows: (x[rows], y[rows]), seed=7
        )
        callback = training.Epochs(run, batches, adapters)
        first = len(run.epochs)
        model.fit(batches, epochs=epochs, initial_epoch=first, verbose=0, callbacks=[callback],
                  shuffle=False)  # fmt: skip
        run.finish()
    return [keras.ops.convert_to_numpy(w) for w in model.trainable_weights]


def losses(path):
    return [epoch["loss"] for epoch in figures(path)["epochs"]]


@contextlib.contextmanager
def interrupted(epochs):
    """Runs end by Ctrl-C after so many epochs.

    That is the worst moment: the backup of the next epoch is there, and its figures are not.
    """
    finish_epoch = Run.finish_epoch

    def interrupt(run, **figures):
        if len(run.epochs) == epochs:
            raise KeyboardInterrupt
        finish_epoch(run, **figures)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Run, "finish_epoch", interrupt)
        yield


@pytest.mark.parametrize("adapters", [False, True])
def test_an_interrupted_run_goes_on_as_if_it_had_not_been(tmp_path, adapters, capsys):
    whole = train(tmp_path / "whole", adapters=adapters)
    assert len(set(losses(tmp_path / "whole"))) == 3
    with interrupted(2):
        train(tmp_path / "run", adapters=adapters)
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")[:2]
    capsys.readouterr()
    resumed = train(tmp_path / "run", adapters=adapters)
    out = capsys.readouterr().out
    assert out.startswith("Resuming after epoch 2.\nepoch 3, ") and out.count("\n") == 2
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")
    for one, other in zip(resumed, whole, strict=True):
        np.testing.assert_array_equal(one, other)
    assert set(contents(tmp_path / "run")) == {"figures.json"}


# Tokens


@pytest.mark.parametrize("kind", ["words", "bpe", "unigram"])
def test_tokenizers(kind, tmp_path):
    size = {"words": 8, "bpe": 300, "unigram": 40}[kind]
    options = {"word": r"\w+(?:'\w+)*", "lowercase": True} if kind == "words" else {}
    made = texts.train_tokenizer(kind, SENTENCES, size, ["[START]"], **options)
    made.enable_truncation(2)
    with Run(tmp_path, PROGRAM, {}) as run:
        run.begin()
        tokenizer = texts.tokenizer_of(run, lambda: made)
        again = texts.tokenizer_of(run, lambda: 1 / 0)
    assert [tokenizer.id_to_token(i) for i in range(3)] == ["[PAD]", "[UNK]", "[START]"]
    assert tokenizer.get_vocab_size() <= size
    rows = texts.encode(tokenizer, SENTENCES[:3])
    for one, other in zip(rows, texts.encode(again, SENTENCES[:3]), strict=True):
        np.testing.assert_array_equal(one, other)
    if kind == "words":
        words = [[tokenizer.id_to_token(i) for i in row] for row in rows]
        assert words[0] == ["a", "dog", "sleeps"] and words[1].count("[UNK]") == 2
    else:
        assert [tokenizer.decode(row) for row in rows] == SENTENCES[:3]
    padded = texts.pad(rows, multiple=8)
    assert padded.shape[1] % 8 == 0 and padded.dtype == "int32"
    for row, found in zip(rows, padded, strict=True):
        np.testing.assert_array_equal(found, [*row, *[0] * (len(found) - len(row))])


def test_names_of_special_tokens_are_text(tmp_path):
    texts.train_tokenizer("words", SENTENCES, 20).save(str(tmp_path / "tokenizer.json"))
    (row,) = texts.encode(texts.load_tokenizer(tmp_path), ["[PAD] a dog"])
    assert 0 not in row and len(row) == 3


def test_batches_differ_in_the_first_two_and_are_shared(monkeypatch):
    lengths = np.array([5, 5, 5, 2, 5, 7])
    batches = training.Batches(
        lambda rng: [np.array([n, n, n]) for n in rng.permutation(6)],
        lambda rows: np.zeros((len(rows), lengths[rows].max())),
        lambda rows: lengths[rows].max(),
        devices=2,
    )
    for epoch in range(5):
        batches.start(epoch)
        found = [batches[i].shape for i in range(len(batches))]
        assert found[0][1] != found[1][1] and {rows for rows, _ in found} == {4}
        assert sorted(length for _, length in found) == sorted(lengths)
    orders = [[int(b[0]) for b in batches.batches]]
    batches.start(4)
    orders.append([int(b[0]) for b in batches.batches])
    batches.start(3)
    assert orders[0] == orders[1] != [int(b[0]) for b in batches.batches]
