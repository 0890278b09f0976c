"""Runs every example in the package's docstrings, README.md and docs/: `python -m tests.doctests`.

`python -m tests.doctests docstrings` runs those alone, and `… pages` those of README.md and docs/.

In Markdown, each fenced `python` block runs as pasted; blocks of one page share their names, top to
bottom. A block marked `python no-run` is shown, not run. What a line prints is
compared with its comment, on TensorFlow, which the pages show: the comment begins with it, to as
many decimals as the comment has, and may explain it.
"""

import builtins
import doctest
import importlib
import io
import os
import pathlib
import pkgutil
import re
import sys
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras

import keras_attention

if keras.config.backend() == "tensorflow":
    import tensorflow as tf

    # It discards the kernels of all eager operations: see tests/conftest.py.
    tf.random.set_seed(0)
    tf.random.set_seed = lambda seed: None

ROOT = pathlib.Path(__file__).parent.parent
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


class ShapeChecker(doctest.OutputChecker):
    """Lets PyTorch's `torch.Size([2, 3])` and TensorFlow's `TensorShape` stand for `(2, 3)`."""

    def check_output(self, want, got, optionflags):
        got = re.sub(r"(?:torch\.Size|TensorShape)\(\[([\d, ]*)\]\)", r"(\1)", got)
        return super().check_output(want, got, optionflags)


def module_names():
    """The package's modules, without those of backends whose library may not be installed."""
    others = {"tensorflow", "jax", "torch"} - {keras.config.backend()}
    others = tuple(f"keras_attention.backend.{name}" for name in others)
    modules = pkgutil.walk_packages(keras_attention.__path__, "keras_attention.")
    names = [module.name for module in modules if not module.name.startswith(others)]
    return ["keras_attention", *names]


def docstring_failures():
    """Runs the docstrings of all modules; returns (failed, attempted)."""
    failed = attempted = 0
    for name in module_names():
        module = importlib.import_module(name)
        runner = doctest.DocTestRunner(ShapeChecker(), optionflags=doctest.ELLIPSIS)
        for test in doctest.DocTestFinder(exclude_empty=True).find(module, name):
            test.globs["__name__"] = "__main__"
            keras.utils.set_random_seed(0)
            runner.run(test)
        failed, attempted = failed + runner.failures, attempted + runner.tries
    return failed, attempted


def programs(page):
    """Yields the line and the compiled code of each Python block of a page."""
    text = page.read_text(encoding="utf-8")
    for block in BLOCK.finditer(text):
        lines = text[: block.start(1)].count("\n")
        yield lines + 1, compile("\n" * lines + block.group(1), str(page), "exec")


# How frameworks wrap an array and a shape, and what of a text is compared.
WRAPPER = re.compile(
    r"\b(?:tf\.Tensor|torch\.Size|TensorShape|tensor|Array)\(|, (?:shape|dtype)=[^,]*"
)
TOKEN = re.compile(r"-?\d+(?:\.\d*)?(?:e-?\d+)?|[\w/]+|…")


def is_shown(comment, printed):
    """Whether a comment begins with what was printed."""
    expected, found = TOKEN.findall(comment), TOKEN.findall(WRAPPER.sub(" ", printed))
    if "…" in expected:
        expected = expected[: expected.index("…")]
        found = found[: len(expected)]
    return len(expected) >= len(found) > 0 and all(map(_equal, expected, found))


def _equal(expected, found):
    try:
        decimals = len(expected.partition(".")[2])
        return round(float(found), decimals) == float(expected)
    except ValueError:
        return expected == found


def recorder(page, lines):
    """A `print` that writes to `lines` what each line of a page prints."""

    def record(*values, **options):
        text = io.StringIO()
        builtins.print(*values, **options | {"file": text})
        frame = sys._getframe(1)
        if frame.f_code.co_filename == str(page):
            lines.setdefault(frame.f_lineno, []).append(text.getvalue())

    return record


def wrong_comments(page, lines):
    """Yields each line of a page whose comment is not what it printed."""
    source = page.read_text(encoding="utf-8").splitlines()
    for number, printed in lines.items():
        comment = source[number - 1].partition("  # ")[2]
        if comment and not is_shown(comment, " ".join(dict.fromkeys(printed))):
            yield f"{number}: shown {comment!r}, printed {' '.join(printed)!r}"


def page_failures():
    """Runs the Python blocks of every page; returns (failed, attempted)."""
    failed = attempted = 0
    for page in [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]:
        lines = {}
        names = {"__name__": "__main__", "print": recorder(page, lines)}
        keras.utils.set_random_seed(0)
        for line, program in programs(page):
            attempted += 1
            try:
                exec(program, names)
            except Exception as error:
                failed += 1
                print(f"{page.relative_to(ROOT)}:{line}: {type(error).__name__}: {error}")
        if keras.config.backend() == "tensorflow":
            for wrong in wrong_comments(page, lines):
                failed += 1
                print(f"{page.relative_to(ROOT)}:{wrong}")
    return failed, attempted


PARTS = {"docstrings": docstring_failures, "pages": page_failures}


def main():
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        results = {name: PARTS[name]() for name in sys.argv[1:] or PARTS}
        os.chdir(ROOT)
    failed, attempted = (sum(column) for column in zip(*results.values(), strict=True))
    print(f"{attempted - failed} passed, {failed} failed, of {' and '.join(results)}")
    print(f"({time.perf_counter() - start:.0f} s)")
    sys.exit(1 if failed or not attempted else 0)


if __name__ == "__main__":
    main()
