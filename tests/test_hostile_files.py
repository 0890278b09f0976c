"""Model files of strangers: no config runs code, and sizes without bounds end in errors."""

import json
import time
import zipfile

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention import patterns
from tests import definition
from tests.arrays import close, random
from tests.test_constructors import make, public_classes

# What a test is warned of when it is called.
evaluate = eval


def called(*arguments, **kwargs):
    raise AssertionError(f"Code of a config ran: {arguments} {kwargs}")


@pytest.fixture
def alarms(monkeypatch, tmp_path):
    """Makes what attackers call fail the test. Returns a path that only a lambda writes."""
    names = "os.system", "os.popen", "subprocess.Popen", "builtins.eval", "keras.utils.get_file"
    for name in names:
        monkeypatch.setattr(name, called)
    return tmp_path / "owned"


def saved(module, name, config=None, registered=None):
    config = {} if config is None else config
    return dict(module=module, class_name=name, config=config, registered_name=registered)


def a_lambda(path):
    """A layer of a lambda that writes a file when it is called."""
    function = evaluate(f"lambda x: open({str(path)!r}, 'w')")
    return keras.saving.serialize_keras_object(keras.layers.Lambda(function, name="x"))


def poisons(path):
    """What to put in the place of an argument, by name."""
    return {
        "a function of os": saved("os", "function", "system", "system"),
        "a function": saved("builtins", "function", "eval", "eval"),
        "a class": saved("subprocess", "Popen", {"args": ["true"]}),
        "a builtin": saved("builtins", "eval", {"expression": "1"}, "eval"),
        "a registered name": saved("os", "system", {"command": "true"}, "keras_attention>system"),
        "a helper of ours": saved("keras_attention.saving", "deserialize", {"value": {}}),
        "a module": saved("keras_attention.saving", "inspect", {}, "keras_attention>inspect"),
        "a utility": saved("keras.utils", "function", "get_file", "get_file"),
        "a setting": saved("keras.config", "function", "enable_unsafe_deserialization"),
        "a lambda": a_lambda(path)["config"]["function"],
        "a layer of a lambda": a_lambda(path),
        "a layer within": saved("keras.layers", "TimeDistributed", {"layer": a_lambda(path)}),
    }


def error_of(whole, argument, value):
    """What a config with another value raises, which is not of code that ran."""
    config = {**whole, "config": {**whole["config"], argument: value}}
    with pytest.raises(Exception) as raised:
        keras.saving.deserialize_keras_object(config)
    assert "Code of a config ran" not in str(raised.value), (whole, argument, value)
    return raised.value


def test_no_argument_of_a_config_runs_code(alarms):
    """Each argument of all classes has one of the poisons, and each of `Attention` all."""
    bad = list(poisons(alarms).values())
    for cls in public_classes():
        whole = json.loads(json.dumps(keras.saving.serialize_keras_object(make(cls))))
        for argument in set(whole["config"]) - {"name", "trainable", "dtype"}:
            # They rotate, so that each is in the place of many arguments.
            bad.append(bad.pop(0))
            for value in bad if cls is ka.Attention else bad[:1]:
                error_of(whole, argument, value)
                error_of(whole, argument, [value])
            if argument in ("activation", "score", "normalization", "pattern", "position"):
                for text in ("os.system", "eval", "builtins.eval", "__import__('os')", "system"):
                    assert isinstance(error_of(whole, argument, text), (ValueError, TypeError))
    assert not alarms.exists()


@pytest.mark.parametrize("poison", poisons("x"))
def test_a_poisoned_file_is_not_loaded(poison, alarms, tmp_path):
    x = keras.Input((None, 8))
    model = keras.Model(x, ka.TransformerBlock(8, 2, name="block")(x))
    model.save(tmp_path / "model.keras")

    with zipfile.ZipFile(tmp_path / "model.keras") as file:
        parts = {name: file.read(name) for name in file.namelist()}
    config = json.loads(parts["config.json"])
    (block,) = (x for x in config["config"]["layers"] if x["config"]["name"] == "block")
    block["config"]["activation"] = poisons(alarms)[poison]
    parts["config.json"] = json.dumps(config).encode()
    with zipfile.ZipFile(tmp_path / "poisoned.keras", "w") as file:
        for name, data in parts.items():
            file.writestr(name, data)
    with pytest.raises(Exception) as raised:
        keras.saving.load_model(tmp_path / "poisoned.keras")
    assert "Code of a config ran" not in str(raised.value)
    assert not alarms.exists()


def test_the_lambda_would_write_its_file(tmp_path):
    # Or the tests above would test nothing.
    config = a_lambda(tmp_path / "owned")
    layer = keras.saving.deserialize_keras_object(config, safe_mode=False)
    with pytest.raises(Exception):  # noqa: B017
        layer(keras.layers.Input((2,)))
    assert (tmp_path / "owned").exists()


# Sizes: those that are too large each are in tests/test_constructors.py, all together in errors/


def nested(kind, times):
    """The config of a pattern in a pattern in a pattern …"""
    config = keras.saving.serialize_keras_object(patterns.Causal())
    other = keras.saving.serialize_keras_object(patterns.Dilated(2))
    for number in range(times):
        if kind == "~":
            config = saved("keras_attention.patterns", "Not", {"pattern": config})
        else:
            name = "And" if number % 2 else "Or"
            config = saved("keras_attention.patterns", name, {"patterns": [config, other]})
        config["registered_name"] = f"keras_attention>{config['class_name']}"
    return config


@pytest.mark.parametrize("times", [101, 1000, 10**5])
@pytest.mark.parametrize("kind", ["~", "&|"])
def test_patterns_nested_without_end_are_refused_in_no_time(kind, times):
    begun = time.process_time()
    for load in (patterns.get, lambda config: ka.Attention.from_config({"pattern": config})):
        with pytest.raises(ValueError, match="nested 100 deep"):
            load(nested(kind, times))
    assert time.process_time() - begun < 20


def test_patterns_nested_as_deep_as_allowed_work():
    pattern = patterns.get(nested("~", 100 - 1))
    assert pattern.depth == 99 and not bool(pattern(3, 2))
    again = patterns.get(json.loads(json.dumps(keras.saving.serialize_keras_object(pattern))))
    assert again == pattern and len({again, pattern}) == 1 and repr(again) == repr(pattern)
    both = patterns.get(nested("&|", 100 - 1))
    layer = ka.SelfAttention(2, 4, pattern=both)
    assert np.isfinite(keras.ops.convert_to_numpy(layer(np.ones((1, 3, 8), "float32")))).all()


def test_a_conjunction_of_unions_is_not_multiplied_out():
    # Each of these has two parts.
    pattern = patterns.And([patterns.Strided(rate) for rate in range(2, 60)])
    assert len(pattern.parts()) <= 16
    at = np.arange(9)
    allowed = [[definition.attends(pattern, i, j) for j in at] for i in at]
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(pattern(at, at)), allowed)
    x = random(1, 9, 8)
    layer = ka.SelfAttention(2, 4, pattern=pattern)
    close(layer(x), layer(x, return_attention_scores=True)[0])
