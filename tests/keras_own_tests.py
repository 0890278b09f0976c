"""Runs the tests that Keras ships for its layer on ours: `python -m tests.keras_own_tests`.

Nothing of Keras is copied: the file is the one in the installed wheel. It runs on the backend that
KERAS_BACKEND names, with `keras.layers.MultiHeadAttention` replaced. Arguments go to pytest.

`EXPECTED_TO_FAIL` lists what our layer does differently on purpose. Each of these runs as well: one
that passes, or that Keras no longer has, fails the run, so the list cannot go stale.
"""

import contextlib
import importlib.util
import os
import sys
import tempfile
from unittest import mock

import keras
import pytest

import keras_attention

MODULE = "keras.src.layers.attention.multi_head_attention"

# Name of the test: why it asserts what we do not promise.
_PRIVATE = "overrides or calls Keras's private `_compute_attention`, which we do not have"
EXPECTED_TO_FAIL = {
    "test_causal_only_skipped_for_subclass": _PRIVATE,
    "test_compute_attention_combines_causal_and_explicit_mask_fused_fallback": _PRIVATE,
    "test_compute_attention_combines_causal_and_explicit_mask_manual_path": _PRIVATE,
    "test_sliding_window_serialization": (
        "reads Keras's private `_sliding_window`; our attribute is `sliding_window`"
    ),
    "test_flash_attention_with_errors": (
        "wants `flash_attention=True` to refuse dropout and scores; it never changes an answer here"
    ),
}


class Expectations:
    """A pytest plugin: the listed tests must exist, and must fail."""

    def __init__(self):
        self.passed = 0

    def pytest_configure(self, config):
        config.addinivalue_line("markers", "requires_trainable_backend: as Keras's tests use it")

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items):
        missing = set(EXPECTED_TO_FAIL) - {item.name for item in items}
        if missing:
            raise pytest.UsageError(
                f"keras {keras.__version__} has no such tests, take them off the list: "
                f"{sorted(missing)}"
            )
        for item in items:
            if item.name in EXPECTED_TO_FAIL:
                item.add_marker(pytest.mark.xfail(reason=EXPECTED_TO_FAIL[item.name], strict=True))

    def pytest_runtest_logreport(self, report):
        self.passed += report.when == "call" and report.outcome == "passed"


@contextlib.contextmanager
def replaced():
    """Puts our layer where Keras's tests find theirs, and makes an error of reaching theirs."""
    module = sys.modules[MODULE]
    theirs, ours = module.MultiHeadAttention, keras_attention.MultiHeadAttention

    def refuse(self, *args, **kwargs):
        raise AssertionError("The test reached Keras's own layer.")

    with (
        mock.patch.object(sys.modules["keras.src.layers"], "MultiHeadAttention", ours),
        mock.patch.object(module, "MultiHeadAttention", ours),
        mock.patch.object(theirs, "__init__", refuse),
    ):
        yield


def main(arguments):
    path = importlib.util.find_spec(f"{MODULE}_test").origin
    plugin = Expectations()
    with tempfile.TemporaryDirectory() as folder, replaced():
        # A configuration of its own: ours makes errors of warnings, and Keras's code may warn.
        settings = os.path.join(folder, "pytest.ini")
        with open(settings, "w") as file:
            file.write("[pytest]\n")
        options = ["-c", settings, "--rootdir", folder, "-p", "no:cacheprovider"]
        options += ["--disable-warnings", "-rxXs", "-q"]
        code = pytest.main([*options, path, *arguments], plugins=[plugin])
    if code == 0 and not plugin.passed:
        print("No test passed: nothing was tested.")
        return 1
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
