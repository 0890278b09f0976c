"""`--pretrained`: models of folders in Hugging Face's format learn to classify reviews."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest

if not all(map(importlib.util.find_spec, ("tokenizers", "safetensors"))):
    pytest.skip("what reads such folders is missing", allow_module_level=True)

import safetensors.numpy

from examples import imdb_classification, imdb_reviews, texts, training
from examples.shared import Run, UsageError
from tests.examples.imdb.folders import THEIRS, VOCABULARY, write_gpt2, write_tokenizer
from tests.examples.imdb.runs import ROOT, curves, figures, main, settings_of

TEXTS = ["A superb plot.", "Dull, dull and dull! The villain is dull, and so is the hero.", "Bad"]


@pytest.fixture(scope="session")
def gpt2(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpt2")
    write_tokenizer(folder, imdb_reviews.generate(200, 0)[0])
    write_gpt2(folder)
    return folder


@pytest.fixture(scope="session")
def written(gpt2, tmp_path_factory):
    """A function of a class of `transformers`: a folder, and the model in it."""
    torch, transformers = map(pytest.importorskip, ("torch", "transformers"))
    made = {}

    def write(name):
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            shutil.copy(gpt2 / "tokenizer.json", folder)
            torch.manual_seed(0)
            cls = getattr(transformers, name)
            model = cls(cls.config_class(**THEIRS[name])).eval()
            model.save_pretrained(folder)
            made[name] = folder, model
        return made[name]

    return write


SETTINGS = settings_of("pretrained", max_length=16)


def classifier(folder, lora=None):
    model, tokenizer = texts.load_pretrained(folder, 16, "--max-length")
    return imdb_classification.build(
        {**SETTINGS, "lora": lora}, None, folder_model=model
    ), tokenizer


def batch(tokenizer, given=TEXTS):
    return texts.pad(imdb_classification.encode(tokenizer, given, SETTINGS), 16)


@pytest.mark.parametrize("name", THEIRS)
def test_the_head_sees_the_first_token_or_the_last(name, written):
    torch = pytest.importorskip("torch")
    folder, theirs = written(name)
    model, tokenizer = classifier(folder)
    kernel = np.random.default_rng(0).normal(size=(8, 1))
    model.get_layer("probability").set_weights([kernel, np.array([0.1])])
    found = model.predict_on_batch(batch(tokenizer))[:, 0]
    place = -1 if name in ("GPT2LMHeadModel", "LlamaForCausalLM") else 0
    for text, probability in zip(TEXTS, found, strict=True):
        (row,) = imdb_classification.encode(tokenizer, [text], SETTINGS)
        tokens = torch.tensor(row[None] - 1).long()
        with torch.no_grad():
            states = theirs.base_model(input_ids=tokens).last_hidden_state[0, place].numpy()
        assert probability == pytest.approx(1 / (1 + np.exp(-states @ kernel - 0.1))[0], abs=1e-5)
    assert np.ptp(found) > 1e-3


def numpy(variables):
    return {v.path: np.array(keras.ops.convert_to_numpy(v)) for v in variables}


@pytest.mark.parametrize("lora", [None, 2], ids=["whole", "lora"])
@pytest.mark.parametrize("name", ["gpt2", "BertForMaskedLM"])
def test_a_step_changes_only_what_is_to_be_trained(name, lora, gpt2, request):
    folder = gpt2 if name == "gpt2" else request.getfixturevalue("written")(name)[0]
    model, tokenizer = classifier(folder, lora)
    model.compile(training.fine_tuning(1e-2, 4), "binary_crossentropy")
    # A program takes longer than all else here, but on JAX one for each operation does.
    model.run_eagerly = keras.backend.backend() != "jax"
    before = numpy(model.variables)
    for _ in range(2):  # In the first step the gradient of A is 0, since B is.
        model.train_on_batch(batch(tokenizer), np.array([[1], [0], [0]]))
    after = numpy(model.variables)
    changed = {path for path in after if np.any(after[path] != before[path])}
    changed = {path for path in changed if "seed" not in path}
    trained = {variable.path for variable in model.trainable_variables}
    # The bias of a key moves all scores of a query alike.
    unmoved = {path for path in trained - changed if "attention/key/bias" not in path}
    assert changed <= trained and not unmoved
    if lora:
        assert {path for path in trained if "lora_kernel" not in path} == {
            "probability/kernel", "probability/bias",
        }  # fmt: skip
        assert len(trained) == 2 * 2 * (1 if name == "gpt2" else 2) + 2
    else:
        assert len(trained) == len([path for path in before if "seed" not in path])


OPTIONS = {"whole": [], "lora": ["--lora", 2, "--learning-rate", 1e-2]}


def command(gpt2, folder, output, kind="lora"):
    common = ["--max-length", 16, "--batch-size", 16, "--epochs", 2, "--data-dir", folder]
    return ["--pretrained", gpt2, *OPTIONS[kind], *common, "--output", output]


@pytest.fixture(scope="session")
def runs(gpt2, folder, tmp_path_factory):
    """The output of an uninterrupted run of each kind."""
    outputs = {kind: tmp_path_factory.mktemp("pretrained") / kind for kind in OPTIONS}
    for kind, output in outputs.items():
        assert main(*command(gpt2, folder, output, kind)) == 0
    return outputs


@pytest.mark.parametrize("kind", OPTIONS)
def test_a_run_trains_and_saves(kind, gpt2, folder, runs):
    output = runs[kind]
    assert sorted(file.name for file in output.iterdir()) == [
        "figures.json", "model.keras", "tokenizer.json",
    ]  # fmt: skip
    said = figures(output)
    assert said["settings"]["learning_rate"] == {"whole": 2e-5, "lora": 1e-2}[kind]
    # The adapters are in the kernels, whose number is that of the folder's model and the head.
    saved = keras.models.load_model(output / "model.keras")
    assert saved.count_params() == classifier(gpt2)[0].count_params()
    _, _, test = imdb_reviews.load(folder)
    found = saved.predict_on_batch(batch(texts.load_tokenizer(output), test.texts))[:, 0]
    accuracy = np.mean((found > 0.5) == test.labels)
    assert accuracy == pytest.approx(said["test_accuracy"], abs=1e-6)


PREDICT = """
import sys
from examples.imdb_classification import main
sys.exit(main(["predict", *sys.argv[1:]]))
"""


@pytest.mark.slow
def test_prediction_here_and_in_a_fresh_process(runs, capsys):
    output = runs["lora"]
    assert main("predict", output, "Superb.", "?!") == 0
    said = capsys.readouterr().out
    saved = keras.models.load_model(output / "model.keras")
    expected = saved.predict_on_batch(batch(texts.load_tokenizer(output), ["Superb."]))[0, 0]
    label = "positive" if expected >= 0.5 else "negative"
    first, *others = said.splitlines()
    assert first == f'{label} {expected:.3f}  "Superb."'
    assert others == ['no label  "?!"', "    it has no words that the model knows"]
    done = subprocess.run(
        [sys.executable, "-c", PREDICT, str(output), "Superb.", "?!"],
        env={**os.environ, "KERAS_BACKEND": keras.backend.backend(), "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == said


@pytest.mark.slow
def test_an_interrupted_run_resumes_to_the_same_figures(
    gpt2, folder, runs, tmp_path, monkeypatch, capsys
):
    output = tmp_path / "run"
    finish_epoch = Run.finish_epoch

    def interrupt(run, **figures):
        if run.epochs:
            raise KeyboardInterrupt
        finish_epoch(run, **figures)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "finish_epoch", interrupt)
        assert main(*command(gpt2, folder, output)) == 130
    assert main(*command(gpt2, folder, output)) == 0
    assert "Resuming after epoch 1" in capsys.readouterr().out
    assert curves(output) == curves(runs["lora"])
    weights = [
        keras.models.load_model(p / "model.keras").get_weights() for p in (output, runs["lora"])
    ]
    for one, other in zip(*weights, strict=True):
        np.testing.assert_array_equal(one, other)


def change(folder, **fields):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **fields}))


def no_config(folder):
    (folder / "config.json").unlink()


def no_tokens(folder):
    (folder / "tokenizer.json").unlink()


def no_weights(folder):
    (folder / "model.safetensors").unlink()


def damaged_tokens(folder):
    (folder / "tokenizer.json").write_text("{}")


def few_positions(folder):
    change(folder, n_positions=8)
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    tensors["wpe.weight"] = tensors["wpe.weight"][:8]
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")


def few_tokens(folder):
    change(folder, vocab_size=100)
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    tensors["wte.weight"] = tensors["wte.weight"][:100]
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")


def unknown(folder):
    change(folder, model_type="other")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (shutil.rmtree, "is not a directory"),
        (no_config, "has no config.json: it must be a folder that `transformers` wrote"),
        (no_tokens, "has no tokenizer.json: it must be a folder"),
        (no_weights, "cannot be read: "),
        (damaged_tokens, "tokenizer.json is damaged: "),
        (few_positions, "is for at most 8 tokens: give such a --max-length, received 16"),
        (few_tokens, f"has {VOCABULARY} tokens, and the model beside it 100"),
        (unknown, "'model_type' of"),
    ],
)
def test_a_folder_that_will_not_do_is_one_line(damage, message, gpt2, folder, tmp_path, capsys):
    copy, output = tmp_path / "copy", tmp_path / "run"
    shutil.copytree(gpt2, copy)
    damage(copy)
    assert main(*command(copy, folder, output)) == 2
    err = capsys.readouterr().err
    assert message in err and err.splitlines()[-1].startswith("error: ")
    assert not output.exists()


def test_a_model_of_pairs_is_refused(tmp_path, gpt2):
    _, transformers = map(pytest.importorskip, ("torch", "transformers"))
    config = transformers.T5Config(
        vocab_size=VOCABULARY, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2
    )
    transformers.T5ForConditionalGeneration(config).save_pretrained(tmp_path)
    shutil.copy(gpt2 / "tokenizer.json", tmp_path)
    with pytest.raises(UsageError, match="must be an encoder or a decoder of texts: 't5' is not"):
        classifier(tmp_path)


def test_a_package_that_is_missing_is_named(gpt2, folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert main(*command(gpt2, folder, tmp_path / "run")) == 2
    err = capsys.readouterr().err
    assert "tokenizers" in err and 'pip install -e ".[examples]"' in err


@pytest.mark.slow
def test_other_weights_are_other_settings(gpt2, folder, tmp_path, monkeypatch, capsys):
    copy, output = tmp_path / "copy", tmp_path / "run"
    shutil.copytree(gpt2, copy)
    finish = Run.finish_epoch

    def interrupt(run, **figures):
        # After an epoch: settings of none are forgotten.
        finish(run, **figures)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Run, "finish_epoch", interrupt)
        assert main(*command(copy, folder, output)) == 130
    change(copy, n_inner=None)
    assert main(*command(copy, folder, output)) == 2
    assert "weights is " in capsys.readouterr().err


def test_texts_are_between_special_tokens_and_shortened_in_the_middle(gpt2):
    tokenizer = texts.load_tokenizer(gpt2)
    given = [" ".join(["word"] * 60), "Bad<br />plot", "Bad plot", ""]
    long, short, same, empty = imdb_classification.encode(tokenizer, given, SETTINGS)
    assert len(long) == 16 and len(short) < 16
    for numbers in (long, short):
        assert numbers[0] == 0 + 1 and numbers[-1] == 2 + 1
    np.testing.assert_array_equal(short, same)
    assert empty.tolist() == [1, 3]
