"""How much there is to read: `python -m tests.core_path`.

The core path is what one reads to follow a call from `Attention.call` to its output: the modules
that read its arguments, make heads, choose a kernel, and the reference kernel, whole. Not on it are
slots (a file each), decoding, symbolic calls, heads of several axes, and other kernels. Also
counted: the functions that one call runs, slots and the reasons of other kernels included; and the
package by folder, beside the revision before the core was redesigned (3b93c90).
"""

import ast
import pathlib
import sys

import keras

import keras_attention

PACKAGE = pathlib.Path(keras_attention.__file__).parent
# In the order in which a newcomer reads them.
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

# Lines of each folder, and of the files beside them, at 3b93c90.
BEFORE = {
    "": 2539,
    "convert": 675,
    "generation": 831,
    "kernels": 3022,
    "layers": 4364,
    "positions": 706,
    "scores": 757,
    "visualization": 707,
}
# What the package could not do then.
ADDED = [
    "backend/torch_graphs.py",
    "backend/torch_loops.py",
    "distribution.py",
    "kernels/ring.py",
    "layers/attention_rnn.py",
]


def lines(path):
    """How many lines a file has."""
    return len(path.read_text(encoding="utf-8").splitlines())


def core():
    """The lines of each module of the core path, by its name."""
    return {name: lines(PACKAGE / name) for name in CORE}


def folders():
    """The lines of each folder; those of the files beside them under an empty name."""
    found = dict.fromkeys(BEFORE, 0)
    for path in PACKAGE.rglob("*.py"):
        folder = path.relative_to(PACKAGE).parts[0] if path.parent != PACKAGE else ""
        found[folder] = found.get(folder, 0) + lines(path)
    return found


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
    now = folders()
    for name, count in sorted(now.items()):
        print(f"{count:6,} {name or 'files'}, {BEFORE.get(name, 0):,} before")
    print(f"{sum(now.values()):6,} the package, {sum(BEFORE.values()):,} before")
    print(f"{sum(lines(PACKAGE / name) for name in ADDED):6,} of it in {', '.join(ADDED)}")


if __name__ == "__main__":
    main()
