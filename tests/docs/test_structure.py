"""The shape of the code: what imports what, where backends are told apart, what is documented."""

import ast
import functools
import importlib
import importlib.util
import inspect
import re
import subprocess
import sys
from pathlib import Path

import keras

import keras_attention
from keras_attention.core import former_modules
from tests import doctests

PACKAGE = Path(keras_attention.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))

# Data flows down: each part may import those on later lines, and itself.
ORDER = [
    {"__init__"},
    {"inspection"},
    {"convert", "distribution", "generation", "lora", "mask_flow", "visualization"},
    {"models"},
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
    ("convert", "generation"),
    ("normalizations", "scores"),
    ("positions", "scores"),
    ("masks", "backend"),
    ("masks", "shapes"),
    ("rematerialization", "masks"),
    ("sequence_parallel", "shapes"),
}
LEVEL = {part: level for level, parts in enumerate(ORDER) for part in parts}


def every_file(check):
    """A test that checks each file of the package."""

    def test():
        for path in FILES:
            check(path)

    return test


@functools.cache
def tree(path):
    return ast.parse(path.read_text(encoding="utf-8"))


# Their files have places of their own in the order.
ROOMS = ("core", "sequences")


def part_of(names):
    """The part of the package that a path of names belongs to: its folder or its file."""
    first, *rest = names
    return rest[0] if rest and first in ROOMS else first


def part(path):
    return part_of(path.relative_to(PACKAGE).with_suffix("").parts)


def imported_modules(path):
    """Every module that a file imports, dotted, `from a import b` as both "a" and "a.b"."""
    names = []
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "the package imports by absolute names"
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return names


def imported_parts(path):
    names = [name.split(".") for name in imported_modules(path)]
    found = {part_of(name[1:]) for name in names if name[0] == "keras_attention" and name[1:]}
    return found - set(ROOMS)


@every_file
def test_imports_go_down(path):
    here = part(path)
    assert here in LEVEL, f"{here} has no place in the order yet: see ORDER"
    for there in imported_parts(path) - {here}:
        if here == "__init__":
            continue  # The public door, which names everything.
        assert there in LEVEL, f"{here} imports {there}, which has no place in the order: see ORDER"
        down = LEVEL[here] < LEVEL[there]
        assert down or (here, there) in BESIDE, f"{here} imports {there}, which is not below it"


VENDORS = {"tensorflow", "jax", "torch", "openvino"}


def backend_branches(path):
    """What in a file reads which backend runs, or imports one."""
    calls = [node.func for node in ast.walk(tree(path)) if isinstance(node, ast.Call)]
    return [
        *(f"line {call.lineno}" for call in calls if ast.unparse(call).endswith("backend")),
        *(name for name in imported_modules(path) if name.split(".")[0] in VENDORS),
    ]


@every_file
def test_only_the_backends_tell_backends_apart(path):
    assert part(path) == "backend" or not backend_branches(path)


@every_file
def test_only_one_module_reaches_inside_keras(path):
    assert part(path) == "keras_private" or "keras.src" not in ast.unparse(tree(path))


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


def attributes(path):
    """The names of the attributes that a file reads or writes."""
    return {node.attr for node in ast.walk(tree(path)) if isinstance(node, ast.Attribute)}


PRIVATE = private_attributes_of_keras()


@every_file
def test_only_one_module_uses_private_attributes_of_keras(path):
    assert part(path) == "keras_private" or not attributes(path) & PRIVATE


OF_BACKENDS = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "Torch"}
BACKENDS = [path for path in FILES if path.parent.name == "backend" and path.stem in VENDORS]


def test_every_backend_has_what_the_interface_documents():
    for path in BACKENDS:
        documented, own = (
            {
                node.name: node
                for cls in tree(file).body
                if isinstance(cls, ast.ClassDef) and cls.name in ("Backend", name)
                for node in cls.body
                if isinstance(node, ast.FunctionDef)
            }
            for file, name in (
                (path.with_name("interface.py"), None),
                (path, OF_BACKENDS[path.stem]),
            )
        )
        for name, node in own.items():
            expected = [argument.arg for argument in documented[name].args.args]
            assert [argument.arg for argument in node.args.args] == expected, (path, name)
        # What the interface computes is for every backend.
        assert {name for name, node in documented.items() if len(node.body) == 1} <= set(own)


def test_what_is_forbidden_is_seen(tmp_path):
    edges = {(part(path), there) for path in FILES for there in imported_parts(path)}
    assert {("layers", "kernels"), ("kernels", "shapes"), ("positions", "scores")} <= edges
    assert ("shapes", "layers") not in edges
    private = "layer._flatten_layers(); layer._convert_input_args = False"
    branches = "import torch", "from jax import numpy", "keras.config.backend() == 'torch'"
    for number, line in enumerate((private, *branches)):
        path = tmp_path / f"module_{number}.py"
        path.write_text(f"import keras\n{line}\n")
        assert backend_branches(path) or attributes(path) <= PRIVATE, line


def test_doctests_need_no_other_backend():
    others = VENDORS - {keras.config.backend()}
    names = doctests.module_names()
    assert len(names) > 50
    for name in names:
        file = importlib.util.find_spec(name).origin
        roots = {imported.split(".")[0] for imported in imported_modules(Path(file))}
        assert not roots & others, f"{name} imports {roots & others}, which may not be installed"


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


@every_file
def test_products_keep_float64(path):
    """Keras computes these in float32 on PyTorch, but for `einsum`: see `projections.product`."""
    own = part(path) in ("backend", "keras_private") or path.stem == "projections"
    text = path.read_text(encoding="utf-8")
    assert own or not re.search(r"\bops\.(matmul|tensordot|dot|vdot|inner)\(", text)


@every_file
def test_no_assert_statements(path):
    assert not [node.lineno for node in ast.walk(tree(path)) if isinstance(node, ast.Assert)]


def undocumented(module):
    """What is public in a module and has no docstring: itself, its classes, its functions."""
    definitions = [
        node
        for node in module.body
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and not node.name.startswith("_")
    ]
    missing = [node.name for node in definitions if not ast.get_docstring(node)]
    return missing if ast.get_docstring(module) else ["the module", *missing]


@every_file
def test_every_module_class_and_function_has_a_docstring(path):
    # The interface documents those of a backend.
    assert path in BACKENDS or not undocumented(tree(path))


def test_every_public_layer_documents_its_arguments():
    for name in keras_attention.__all__:
        cls = getattr(keras_attention, name)
        if not isinstance(cls, type):
            continue
        parts = ["Args:", "Call arguments", "Example:", ">>> "]
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


IMPORT = """
import sys
import keras
before = set(sys.modules)
import keras_attention
print(*{name.split(".")[0] for name in set(sys.modules) - before} - sys.stdlib_module_names)
"""


# Nothing is timed: an import that draws in nothing is quick on any machine.
def test_import_draws_in_nothing_but_itself():
    command = [sys.executable, "-c", IMPORT]
    found = subprocess.run(command, cwd=PACKAGE.parent, capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["keras_attention"]
