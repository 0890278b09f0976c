"""How much there is to read: `python -m tests.core_path`.

Counts the lines of the package, those of the modules that an attention goes through from
`Attention.call` to the reference kernel, and those of the functions that run on the way, slots and
the reasons of other kernels included.
"""

import ast
import pathlib
import sys

import keras

import keras_attention

PACKAGE = pathlib.Path(keras_attention.__file__).parent
# What a newcomer reads, in this order; the slots are one file each beside it.
CORE = [
    "spec.py",
    "shapes.py",
    "masks.py",
    "inputs.py",
    "layers/attention.py",
    "layers/heads.py",
    "layers/projections.py",
    "kernels/__init__.py",
    "kernels/semantics.py",
    "kernels/reference.py",
]


def lines(path):
    """How many lines a file has."""
    return len(path.read_text(encoding="utf-8").splitlines())


def core():
    """The lines of each module of the core path, by its name."""
    return {name: lines(PACKAGE / name) for name in CORE}


def functions_run():
    """The functions of the package that a call runs: {module: {(first line, name)}}."""
    layer, x = keras_attention.Attention(2, 4), keras.random.normal((2, 5, 8))
    arguments = {"return_attention_scores": True, "use_causal_mask": True}
    layer(x, **arguments)
    found = {}

    def watch(frame, event, _):
        code = frame.f_code
        path = pathlib.Path(code.co_filename)
        if event == "call" and PACKAGE in path.parents:
            name = path.relative_to(PACKAGE).as_posix()
            found.setdefault(name, set()).add((code.co_firstlineno, code.co_name))

    sys.setprofile(watch)
    try:
        layer(x, **arguments)
    finally:
        sys.setprofile(None)
    return found


def lines_of_functions(name, functions):
    """The lines of functions of a module, their docstrings included."""
    tree = ast.parse((PACKAGE / name).read_text(encoding="utf-8"))
    definitions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return sum(
        node.end_lineno - node.lineno + 1
        for node in definitions
        if (min([node.lineno, *(d.lineno for d in node.decorator_list)]), node.name) in functions
    )


def main():
    """Prints all counts."""
    for name, count in core().items():
        print(f"{count:6,} {name}")
    print(f"{sum(core().values()):6,} the core path")
    run = functions_run()
    print(
        f"{sum(lines_of_functions(*item) for item in run.items()):6,} in the "
        f"{sum(map(len, run.values()))} functions that a call runs"
    )
    print(f"{sum(map(lines, PACKAGE.rglob('*.py'))):6,} the package")


if __name__ == "__main__":
    main()
