"""The configuration of a Hugging Face model: each of its fields is read, ignored or refused.

An architecture has a table of fields for each `model_type`, in its file. `Config` compares a file
with it: what the table does not have is refused, and so are values that it does not allow. A field
that is absent has the default of `transformers`'s class; null is a value like others.
"""

import json
import pathlib
import typing

from keras_attention.convert.huggingface.fields import NEEDED
from keras_attention.convert.huggingface.tensors import other_formats


class Config:
    """The values of fields by their names in a table; an error where the table does not allow them.

    Messages say `where` the fields are, and of which `model_type`. `folder` is that of the model.
    """

    def __init__(self, values, fields, where="config.json", folder=None, model_type=None):
        self.values, self.where, self.folder = values, where, folder
        self.model_type = model_type or values.get("model_type")
        self._first = {name: field.same_as for name, field in fields.items() if field.same_as}
        # The values, with those of second names under the first.
        given = dict(values)
        for name, first in self._first.items():
            value = given.get(name)
            if value is not None and given.setdefault(first, value) != value:
                wanted = f"equal to {first!r}, of which it is a second name"
                self.refuse(name, wanted, f"{value!r} and {given[first]!r}")
        self._found = {
            name: self._value(name, field, given)
            for name, field in fields.items()
            if field.kind is not None
        }
        unknown = {k: v for k, v in values.items() if k not in fields and v is not None}
        if unknown:
            raise ValueError(
                f"`{where}` has fields that are not supported for model_type="
                f"{self.model_type!r}. Received: {unknown}"
            )

    def _value(self, name, field, given):
        value = given.get(name, field.default)
        if name in given:
            self._check(name, field, value)
        elif value is NEEDED:
            raise ValueError(f"`{self.where}` must have a field {name!r}. Received: none")
        if isinstance(field.choices, dict):
            return field.choices.get(value, value)
        if field.inside is None:
            return value
        where = f"{name} of {self.where}"
        return Config(value or {}, field.inside, where, model_type=self.model_type)

    def _check(self, name, field, value):
        if field.choices:
            self._require(name, value, tuple(field.choices))
            return
        kinds = typing.get_args(field.kind) or (field.kind,)
        # An integer is a float too, and a bool is no number.
        known = isinstance(value, kinds) or (isinstance(value, int) and float in kinds)
        if not (bool in kinds if isinstance(value, bool) else known):
            self.refuse(name, " or ".join(_NAMES[kind] for kind in kinds), repr(value))
        if field.least is not None and value is not None and value < field.least:
            self.refuse(name, f"at least {field.least}", value)

    def __getitem__(self, name):
        return self._found[self.first(name)]

    def __contains__(self, name):
        """Whether the table reads a field of this very name."""
        return name in self._found

    def get(self, name):
        """The value of a field; None where the table does not have it."""
        return self._found.get(self.first(name))

    def first(self, name):
        """The name under which a field is: `name`, or another of which it is a second one."""
        return self._first.get(name, name)

    def require(self, name, *supported):
        """A field that must have one of some values, which depend on others."""
        self._require(name, self[name], supported)
        return self[name]

    def _require(self, name, value, supported):
        if value not in supported:
            no_other = f"nothing else is supported for model_type={self.model_type!r}"
            self.refuse(name, f"one of {supported}: {no_other}", repr(value))

    def refuse(self, name, wanted, received):
        """Raises for the value of a field: what it must be, and what it is."""
        raise ValueError(f"{name!r} of `{self.where}` must be {wanted}. Received: {received}")

    @property
    def architecture(self):
        """The name of the class of `transformers`; None if the file has none: the base model."""
        name = next(iter(self.values.get("architectures") or ()), None)
        return None if name is None else str(name)


def read_json(path, wanted, received=""):
    """What a file of JSON has; an error says what was wanted, and received."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(
            f"{wanted}. Received: {received}{type(error).__name__}: {error}"
        ) from error


def read_file(folder):
    """The fields of the `config.json` of a folder, and the path of that file."""
    path = pathlib.Path(folder) / "config.json"
    if not path.parent.is_dir():
        kind = "a file" if path.parent.exists() else "nothing: download the model there first"
        raise ValueError(f"`folder` must be a folder. Received: {folder}, which is {kind}")
    wanted = "`folder` must have a `config.json` of a Hugging Face model"
    if not path.exists():
        raise ValueError(f"{wanted}. Received: no such file in {folder}{other_formats(folder)}")
    values = read_json(path, wanted, f"{path}, ")
    if not isinstance(values, dict) or not isinstance(values.get("model_type"), str):
        raise ValueError(f"`{path}` must be an object with a `model_type`. Received: {values!r}")
    given = values.get("quantization_config")
    if given is not None:
        method = given.get("quant_method") if isinstance(given, dict) else None
        advice = "Take the model that this one was made of"
        if how := _DEQUANTIZED.get(method):
            advice = f"`{how}` and `save_pretrained` of `transformers` write others"
        raise ValueError(
            f"`{path}` must have no 'quantization_config': weights of few bits are not read. "
            f"{advice}; `model.quantize` quantizes it here. Received: quant_method={method!r}"
        )
    return values, str(path)


# How `transformers` reads a model of few bits as one of all, by how it was quantized.
_CONFIGS = {"fp8": "FineGrainedFP8", "mxfp4": "Mxfp4", "compressed-tensors": "CompressedTensors"}
_DEQUANTIZED: dict[typing.Any, str] = {"bitsandbytes": "from_pretrained(folder).dequantize()"} | {
    method: f"from_pretrained(folder, quantization_config={name}Config(dequantize=True))"
    for method, name in _CONFIGS.items()
}
_NAMES = {dict: "an object", list: "a list", str: "a string", bool: "true or false"}
_NAMES |= {int: "an integer", float: "a number", type(None): "null"}
