"""Every field of every `config.json` that is read: ours and `transformers` beside each other."""

import contextlib
import copy
import dataclasses

import keras
import pytest

from keras_attention.convert.huggingface.architectures import ARCHITECTURES
from keras_attention.convert.huggingface.config import Config
from keras_attention.convert.huggingface.fields import NEEDED
from tests.convert.huggingface import fields
from tests.convert.huggingface.fields import TABLES, Family
from tests.convert.huggingface.models import FAMILIES, ROPE, transformers

# Of those that are run by default, each family has another part of the changes.
EVERY = 12
# PyTorch is what `transformers` runs on, and configurations are read alike on all backends.
on_torch = pytest.mark.skipif(keras.config.backend() != "torch", reason="read alike everywhere")
# Sizes for which three kinds of factors are six.
ROTARY = {
    "llama": {"head_dim": 12},
    "phi3": {"hidden_size": 48},
    "phi": {"hidden_size": 96},
    "gpt_neox": {"hidden_size": 96},
    "falcon": {},
    "cohere": {"hidden_size": 48},
    "glm4": {"head_dim": 24},
    "nemotron": {"hidden_size": 96},
    "gemma3_text": {"head_dim": 12},
    "modernbert": {},
    "gpt_oss": {"head_dim": 12},
    "deepseek_v3": {"qk_rope_head_dim": 12},
}


@pytest.fixture(scope="module")
def family(tmp_path_factory):
    """A function of a `model_type`, and other sizes: its `Family`."""
    made = {}

    def get(kind, **sizes):
        key = kind, *sizes
        if key not in made:
            name, given = FAMILIES[kind]
            path = tmp_path_factory.mktemp(kind)
            made[key] = Family(path, getattr(transformers, name), {**given, **sizes})
        return made[key]

    return get


def test_every_table_has_a_family():
    assert FAMILIES.keys() == TABLES.keys()


@pytest.mark.any_backend
@pytest.mark.parametrize("kind", TABLES)
def test_a_table_has_every_field_of_their_class(kind):
    """What is read has their default, and takes null where they do."""
    table, cls = TABLES[kind], getattr(transformers, FAMILIES[kind][0]).config_class
    theirs = {field.name: field for field in dataclasses.fields(cls)}
    missing = theirs.keys() - table.keys() - {"per_layer_config"}
    assert not missing
    assert set(cls.attribute_map) <= table.keys()
    for name, field in table.items():
        default = theirs[name].default if name in theirs else dataclasses.MISSING
        # Lists and dicts are made by a factory.
        if field.kind is None or default is dataclasses.MISSING or name == "architectures":
            continue
        if field.default is not NEEDED:
            # False is like null where a choice has both.
            assert field.default == default or not (field.default or default), name
        if field.kind is not object and isinstance(None, field.kind):
            cls(**{name: None})


@on_torch
@pytest.mark.parametrize("part", [None, pytest.param(range(EVERY), marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", FAMILIES)
def test_changes_of_fields(kind, part, family):
    """Without a field, with null, and with other values."""
    found = family(kind)
    chosen = part or [list(FAMILIES).index(kind) % EVERY]
    wrong = {}
    for n, (label, values) in enumerate(found.changes()):
        if n % EVERY in chosen and (told := found.check(values)):
            wrong[label] = told
    assert not wrong


@on_torch
@pytest.mark.parametrize("part", [None, pytest.param(range(EVERY), marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ROTARY)
def test_changes_of_rotary_parameters(kind, part, family):
    found = family(kind, **ROTARY[kind])
    several = kind in ("gemma3_text", "modernbert")

    def whole(given):
        return {"full_attention": given, "sliding_attention": ROPE["default"]} if several else given

    def other(given):
        return {"sliding_attention": given}

    changes = [
        change
        for given in ROPE.values()
        for name, wrap in (
            ("rope_parameters", whole),
            *([("rope_parameters", other)] if several else []),
            ("rope_scaling", lambda given: given),
        )
        for change in found.changes_inside(name, given, wrap)
    ]
    # Fewer by default: what reads them is one function.
    step = 1 if part else 60
    wrong = {
        label: told
        for label, values in changes[list(ROTARY).index(kind) :: step]
        if (told := found.check(values))
    }
    assert not wrong


@on_torch
@pytest.mark.parametrize("kind", FAMILIES)
def test_fields_that_are_ignored(kind, family):
    """All at once, with other values, and without them: nothing changes there either."""
    found = family(kind)
    ignored = {k for k, x in found.table.items() if x.kind is None and x.same_as is None}
    changed = {name: fields.ignored_value(found.cls, name) for name in ignored}
    changed = {**found.values, **changed}
    # Tokens stay: those of their defaults are not in a vocabulary of 50. So does the length of a
    # table of Marian, which is computed here.
    gone = {name for name in ignored if not name.endswith(("token_id", "max_position_embeddings"))}
    less = {name: value for name, value in found.values.items() if name not in gone}
    for values in (changed, less):
        assert fields.described(found.config(values)) == found.found
        expected = found.theirs(values)
        assert expected is not None
        assert fields.difference(expected, found.expected) <= 1e-5


@pytest.mark.any_backend
@pytest.mark.parametrize("kind", TABLES)
def test_fields_of_other_models_are_refused(kind):
    name, given = FAMILIES[kind]
    cls = getattr(transformers, name).config_class
    values = {**cls(**given).to_dict(), "model_type": kind}
    Config(values, TABLES[kind])
    for other in set().union(*TABLES.values()) - TABLES[kind].keys():
        with pytest.raises(ValueError, match=f"has fields that are not supported.*'{other}': 3"):
            Config({**values, other: 3}, TABLES[kind])


# What no field is, or few are.
STRANGE = [[], {}, "x", -1, 0, 2.5, float("nan"), True, [None], [{}], {"a": 1}, [[1]]]


@on_torch
@pytest.mark.parametrize("kind", TABLES)
def test_strange_values_raise_no_errors_of_python(kind):
    """A field may have any value in a file: it is taken, or refused by a ValueError."""
    name, given = FAMILIES[kind]
    values = getattr(transformers, name).config_class(**copy.deepcopy(given)).to_dict()
    values = {k: v for k, v in values.items() if k not in fields.TYPES}
    module, table = ARCHITECTURES[kind], TABLES[kind]
    values |= {"model_type": kind, "architectures": [name]}
    before = Config(values, table)
    module.model(before, None)
    # Each family has others: together all fields have all.
    start = list(TABLES).index(kind)
    for n, field in enumerate(table):
        with contextlib.suppress(ValueError):
            config = Config({**values, field: STRANGE[(start + n) % len(STRANGE)]}, table)
            if fields.described(config) != fields.described(before):
                module.model(config, None)
