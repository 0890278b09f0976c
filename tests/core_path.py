"""How much there is to read: `python -m tests.core_path`.

The core path is what one reads to follow a call from `MultiHeadAttention(8, 16)(x, x)` to its
output, on its default kernel: the functions that it runs, with their docstrings. Also counted: the
functions of other calls.
"""

import ast
import pathlib
import sys

import keras

import keras_attention

PACKAGE = pathlib.Path(keras_attention.__file__).parent


def default_call():
    """A call of a built layer, without arguments: the default."""
    layer, x = keras_attention.MultiHeadAttention(8, 16), keras.random.normal((1, 16, 64))
    layer(x, x)
    return lambda: layer(x, x)


def cached_call():
    """The call of one token with a cache."""
    layer, x = keras_attention.MultiHeadAttention(8, 16), keras.random.normal((1, 1, 64))
    layer(x)
    cache = layer.make_cache(1, 32)
    layer(x, cache=cache)
    return lambda: layer(x, cache=cache)


def block_call():
    """A call of a block in training."""
    block, x = keras_attention.TransformerBlock(128, 8), keras.random.normal((1, 16, 64))
    block(x)
    return lambda: block(x, training=True)


def encoder_call():
    """A call of an encoder of one rotary block, of rows with padding on the left."""
    encoder = keras_attention.Encoder([keras_attention.TransformerBlock(64, 4, position="rotary")])
    x = keras.random.normal((2, 9, 32))
    mask = keras.ops.greater_equal(keras.ops.arange(9), [[3], [0]])
    encoder(x, mask=mask)
    return lambda: encoder(x, mask=mask)


CALLS = {
    "default": default_call,
    "cached": cached_call,
    "block": block_call,
    "encoder": encoder_call,
}


def functions_run(call):
    """The functions of the package that a call runs: {module: {(first line, name)}}."""
    found = {}

    def watch(frame, event, _):
        code = frame.f_code
        path = pathlib.Path(code.co_filename)
        if event == "call" and PACKAGE in path.parents:
            name = path.relative_to(PACKAGE).as_posix()
            found.setdefault(name, set()).add((code.co_firstlineno, code.co_name))

    sys.setprofile(watch)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


def count(run):
    """How many functions there are, in how many files, and the lines of all."""
    read = sum(lines_of_functions(*item) for item in run.items())
    return sum(map(len, run.values())), len(run), read


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
    for name, make in CALLS.items():
        run = functions_run(make())
        functions, files, read = count(run)
        print(f"{read:6,} lines of {functions} functions in {files} files: the {name} call")
        if name == "default":
            for module, of_module in run.items():
                print(f"{lines_of_functions(module, of_module):8,} {module}")


if __name__ == "__main__":
    main()
