"""The shape of the code: what imports what, where backends are told apart, what is documented."""

import ast
import functools
import importlib
import inspect
import re
import sys
from pathlib import Path

import keras
import pytest

import keras_attention
from keras_attention.core import former_modules
from tests import mutants

PACKAGE = Path(keras_attention.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))

# Data flows down: each part may import those on later lines, and itself.
ORDER = [
    {"__init__"},
    {"inspection"},
    {"convert", "distribution", "lora", "mask_flow", "visualization"},
    {"models"},
    {"generation"},
    {"layers", "ops"},
    {"alignments", "feature_maps"},
    {"arguments", "sequence"},
    {"slots"},
    {"scores", "normalizations", "positions", "regularizers"},
    {"activations", "losses", "schedules"},
    {"kernels"},
    {"spec"},
    {"patterns"},
    {"grid", "saving", "sizes"},
    {"inputs"},
    {"backend"},
    {"masks", "parts", "rematerialization", "sequence_parallel", "shapes", "version"},
    {"former_modules", "hints", "keras_private", "tap"},
]
# The edges between two parts of one line.
BESIDE = {
    ("normalizations", "scores"),
    ("positions", "scores"),
    ("masks", "backend"),
    ("masks", "shapes"),
    ("rematerialization", "masks"),
    ("sequence_parallel", "shapes"),
}
LEVEL = {part: level for level, parts in enumerate(ORDER) for part in parts}


def source(path):
    return path.read_text(encoding="utf-8")


@functools.cache
def tree(path):
    return ast.parse(source(path))


# Their files have places of their own in the order.
ROOMS = ("core", "sequences")


def part_of(names):
    """The part of the package that a path of names belongs to: its folder or its file."""
    first, *rest = names
    return rest[0] if rest and first in ROOMS else first


def part(path):
    inside = path.relative_to(PACKAGE) if PACKAGE in path.parents else Path(path.name)
    return part_of(inside.with_suffix("").parts)


def imported_modules(path):
    """Every module that a file imports, dotted, `from a import b` as both "a" and "a.b"."""
    names = []
    for node in nodes(path, ast.Import):
        names += [alias.name for alias in node.names]
    for node in nodes(path, ast.ImportFrom):
        assert node.level == 0, "the package imports by absolute names"
        names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return names


def imported_parts(path):
    names = [name.split(".") for name in imported_modules(path)]
    found = {part_of(name[1:]) for name in names if name[0] == "keras_attention" and name[1:]}
    return found - set(ROOMS)


VENDORS = {"tensorflow", "jax", "torch", "openvino"}


def private_attributes_of_keras():
    """What layers, models and recurrent layers of Keras have, but do not document."""
    inputs = keras.Input((1,))
    objects = (
        keras.Model(inputs, inputs),
        keras.Sequential(),
        keras.layers.Dense(1),
        keras.layers.RNN(keras.layers.GRUCell(1)),
    )
    names = {name for thing in objects for name in dir(thing)}
    return {name for name in names if name[0] == "_" and name[1] != "_"}


PRIVATE = private_attributes_of_keras()
OF_BACKENDS = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "Torch"}
BACKENDS = [path for path in FILES if path.parent.name == "backend" and path.stem in VENDORS]


def nodes(path, *kinds):
    return [node for node in ast.walk(tree(path)) if isinstance(node, kinds)]


def not_below(path):
    """The parts that a file imports, and that are not on later lines of the order."""
    here = part(path)
    # The public door names everything.
    others = imported_parts(path) - {here} if here != "__init__" else ()
    below = [there for there in others if LEVEL[here] < LEVEL.get(there, -1)]
    return [there for there in others if there not in below and (here, there) not in BESIDE]


def other_backends(path):
    """The backends that a file imports, but the one that it is of."""
    found = {name.split(".")[0] for name in imported_modules(path)} & VENDORS
    return {name for name in found if part(path) != "backend" or not path.stem.startswith(name)}


def drawn_in(path):
    """The libraries besides Keras, and what comes with it, that an import of a file imports."""
    own = {"keras", "keras_attention", "ml_dtypes", "numpy"} | VENDORS
    inner = [
        node
        for scope in nodes(path, ast.FunctionDef, ast.If)
        if isinstance(scope, ast.FunctionDef) or "TYPE_CHECKING" in ast.unparse(scope.test)
        for node in ast.walk(scope)
    ]
    at_once = [node for node in nodes(path, ast.Import, ast.ImportFrom) if node not in inner]
    names = [getattr(node, "module", None) or node.names[0].name for node in at_once]
    return {name.split(".")[0] for name in names} - own - sys.stdlib_module_names


def undocumented(path):
    """What is public in a module and has no docstring: itself, its classes, its functions."""
    definitions = [
        node
        for node in tree(path).body
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and not node.name.startswith("_")
    ]
    return [node for node in (tree(path), *definitions) if not ast.get_docstring(node)]


# What no file has, but those of some parts of the package; and a line that has it.
FORBIDDEN = {
    "an import from above": (not_below, (), "from keras_attention import layers"),
    "what differs by backend": (
        lambda path: [x for x in nodes(path, ast.Call) if ast.unparse(x.func).endswith("backend")],
        ("backend",),
        "keras.config.backend() == 'jax'",
    ),
    # Its library may not be installed.
    "an import of a backend": (other_backends, (), "from jax import numpy"),
    "the inside of Keras": (
        lambda path: "keras.src" in ast.unparse(tree(path)),
        ("keras_private",),
        "import keras.src.backend",
    ),
    "a private attribute of Keras": (
        lambda path: PRIVATE & {node.attr for node in nodes(path, ast.Attribute)},
        ("keras_private",),
        "layer._flatten_layers()",
    ),
    "another library": (drawn_in, (), "import scipy.sparse"),
    # Keras computes it in float32 on PyTorch: see `projections.product`.
    "a product that is not in float64": (
        lambda path: re.search(r"\bops\.(matmul|tensordot|dot|vdot|inner)\(", source(path)),
        ("backend", "keras_private", "projections"),
        "ops.matmul(x, y)",
    ),
    "an assertion": (lambda path: nodes(path, ast.Assert), (), "assert True"),
    # The interface documents the functions of a backend.
    "anything without a docstring": (undocumented, VENDORS, "def function(): pass"),
}


@pytest.mark.parametrize("name", FORBIDDEN)
def test_no_file_has(name, tmp_path):
    find, parts, line = FORBIDDEN[name]
    found = {path: find(path) for path in FILES if not {part(path), path.stem} & set(parts)}
    assert not {path: bad for path, bad in found.items() if bad}
    wrong = tmp_path / "shapes.py"
    wrong.write_text(f'"""A module."""\n\n{line}\n')
    assert find(wrong)


def test_every_part_has_a_place_in_the_order():
    assert {part(path) for path in FILES} == set(LEVEL)


def methods(path, name):
    """The methods of a class of a file."""
    (cls,) = [cls for cls in nodes(path, ast.ClassDef) if cls.name == name]
    return {node.name: node for node in cls.body if isinstance(node, ast.FunctionDef)}


def test_every_backend_has_what_the_interface_documents():
    for path in BACKENDS:
        documented = methods(path.with_name("interface.py"), "Backend")
        own = methods(path, OF_BACKENDS[path.stem])
        for name, node in own.items():
            expected = [argument.arg for argument in documented[name].args.args]
            assert [argument.arg for argument in node.args.args] == expected, (path, name)
        # What the interface computes is for every backend.
        assert {name for name, node in documented.items() if len(node.body) == 1} <= set(own)


def test_no_folder_has_many_files():
    for folder in {path.parent for path in FILES}:
        files = [path for path in FILES if path.parent == folder]
        assert len(files) <= 14, f"{folder.name} has {len(files)} files: make rooms of it"


def test_former_modules_are_those_that_have_their_contents():
    for path, names in former_modules.FORMER.items():
        module = importlib.import_module(f"keras_attention.{path}")
        for name in names.split():
            assert importlib.import_module(f"keras_attention.{name}") is module, name
            class_name = name.split(".")[-1].title().replace("_", "")
            public = vars(keras_attention).get(class_name)
            assert public is None or vars(module)[class_name] is public, name


def test_every_public_layer_documents_its_arguments():
    for name in keras_attention.__all__:
        cls = getattr(keras_attention, name)
        if not isinstance(cls, type):
            continue
        parts = ["Args:", "Call arguments", ">>> "]
        # A preset may refer to the layer that it is.
        if "Call arguments, results and errors are those of" not in cls.__doc__:
            parts += ["Returns:", "Raises:"]
        for part_of_it in parts:
            assert part_of_it in cls.__doc__, (name, part_of_it)
        arguments = cls.__doc__.split("Call arguments")[0]
        inherited = set()
        for base in re.findall("all other arguments of `(.*?)`", " ".join(arguments.split())):
            inherited |= set(inspect.signature(getattr(keras_attention, base)).parameters)
        for argument in inspect.signature(cls.__init__).parameters:
            if argument not in ("self", "kwargs") and argument not in inherited:
                assert argument in arguments, (name, argument)


def test_presets_override_no_method():
    for base in (keras_attention.Attention, keras_attention.AttentionPooling):
        methods = {name for name in dir(base) if inspect.isfunction(getattr(base, name))}
        for cls in map(vars(keras_attention).get, keras_attention.__all__):
            if isinstance(cls, type) and issubclass(cls, base) and cls is not base:
                own = {name for name, value in vars(cls).items() if inspect.isfunction(value)}
                assert not own & methods - {"__init__"}, cls


def test_the_door_names_all_that_it_imports():
    bound = set()
    for node in tree(PACKAGE / "__init__.py").body:
        if isinstance(node, ast.ImportFrom):
            names = {alias.asname or alias.name for alias in node.names}
            bound |= names - {"_former_modules"}
        else:
            assert isinstance(node, (ast.Expr, ast.Assign)), "the door holds no logic"
    assert sorted(bound) == sorted(keras_attention.__all__)


def test_faults_that_the_suite_must_see_can_be_made():
    for mutant in mutants.mutants():
        mutants.mutated(mutant)
        for path in re.findall(r"tests/[\w/.]+", mutant["tests"]):
            assert (mutants.ROOT / path).exists(), path
