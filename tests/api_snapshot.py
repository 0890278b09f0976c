"""All that is public, one signature a line: `python -m tests.api_snapshot` writes `api/next.txt`.

Beside it lies the file of each release, a copy of `next.txt` as it was then. Public are the names
in `__all__`, the strings that name a slot, the call of a class, the methods that its place in
`docs/api/` lists, the documented properties of layers, and the former names of all these and of
arguments: `p.Some['old'] = new` says that the class takes `old` for `new`.
"""

import inspect
import pathlib
import re

import keras_attention
from keras_attention import saving
from tests.signatures import signature

ROOT = pathlib.Path(__file__).parent.parent
FOLDER = ROOT / "tests/api"
NEXT = FOLDER / "next.txt"
PACKAGE = "keras_attention"
LISTED = re.compile(r"^::: ([\w.]+)\n +options:\n +members: \[(.*)\]$", re.MULTILINE)


def snapshot():
    """The lines of the file, sorted."""
    pages = (page.read_text(encoding="utf-8") for page in sorted(ROOT.glob("docs/api/*.md")))
    listed = {
        name: set(members.split(", ")) for page in pages for name, members in LISTED.findall(page)
    }
    # What pages no longer list, since it has a better name now, is public as it was.
    for release in FOLDER.glob("[0-9]*.txt"):
        for name in map(name_of, read(release)):
            owner, _, member = name.rpartition(".")
            listed.setdefault(owner, set()).add(member)
    return sorted(_of_module(keras_attention, PACKAGE, listed))


def _of_module(module, path, listed):
    former = listed.get(path, set()) - set(module.__all__)
    for name in [*module.__all__, *(name for name in former if hasattr(module, name))]:
        value, where = getattr(module, name), f"{path}.{name}"
        if inspect.ismodule(value):
            yield from _of_module(value, where, listed)
        elif inspect.isclass(value):
            yield where + _signature(value)
            former_names = saving.former_names(value).items()
            yield from (f"{where}[{old!r}] = {new}" for old, new in former_names)
            for member in _members(value, listed.get(where, set())):
                yield f"{where}.{member}{_signature(getattr(value, member))}"
            yield from (f"{where}.{name}" for name in _properties(value))
        elif callable(value):
            yield where + _signature(value)
        elif not isinstance(value, dict):
            yield where
    strings = getattr(module, "BUILTIN", {})
    yield from (f"{path}.BUILTIN[{name!r}] = {cls.__name__}" for name, cls in strings.items())


def _members(cls, listed):
    found = listed | ({"call"} & set(vars(cls)))
    return sorted(name for name in found if inspect.isroutine(getattr(cls, name, None)))


def _properties(cls):
    """The documented properties that this package gives a layer."""
    for owner in cls.__mro__:
        if owner.__module__.startswith(f"{PACKAGE}.layers."):
            for name, value in vars(owner).items():
                if isinstance(value, property) and value.__doc__ and not name.startswith("_"):
                    yield name


def _signature(function):
    found = signature(function)
    parameters = [_bare(parameter) for parameter in found.parameters.values()]
    return str(found.replace(parameters=parameters, return_annotation=found.empty))


def _bare(parameter):
    """A parameter without annotation; a function that is a default by its name."""
    default = parameter.default
    if default is not parameter.empty and (inspect.isroutine(default) or inspect.isclass(default)):
        parameter = parameter.replace(default=_Name(default.__name__))
    return parameter.replace(annotation=parameter.empty)


class _Name(str):
    __repr__ = str.__str__


def read(path):
    return path.read_text(encoding="utf-8").splitlines()


def name_of(line):
    """What a line names, without its signature or value."""
    return line.split("(")[0].split(" = ")[0]


def arguments_of(line):
    """The arguments of a line, with their defaults: `{"key_dim": "None", "self": ""}`, in order."""
    if "(" not in line:
        return {}
    found, depth, text = [], 0, ""
    for letter in line[line.index("(") + 1 : -1]:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth:
            found, text = [*found, text], ""
        else:
            text += letter
    pairs = (part.strip().partition("=") for part in [*found, text] if part.strip())
    return {name: default for name, _, default in pairs}


def main():
    lines = snapshot()
    NEXT.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{len(lines)} lines: {NEXT}")


if __name__ == "__main__":
    main()
