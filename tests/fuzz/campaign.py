"""How many examples are drawn, and by which seed."""

import os
import time

import hypothesis
import keras

BACKEND = keras.backend.backend()
# Of each slow test.
SECONDS = float(os.environ.get("FUZZ_SECONDS", "150"))
# Others each day; in .ci/run, by the content of the package.
SEED = int(os.environ.get("FUZZ_SEED", int(time.time()) // 86400 * 1000))
COMMON = {
    "deadline": None,
    "database": None,
    # Not what else would fail, which takes minutes to find out.
    "phases": [p for p in hypothesis.Phase if p is not hypothesis.Phase.explain],
    "suppress_health_check": list(hypothesis.HealthCheck),
}


def few(**examples):
    """Settings of a test that is the same in every run, of so many examples on each backend."""
    return hypothesis.settings(max_examples=examples[BACKEND], derandomize=True, **COMMON)


def many(check, strategy):
    """Draws for `SECONDS`, by another seed every 20 examples, which is printed."""
    end, seed = time.monotonic() + SECONDS, SEED
    while time.monotonic() < end:
        print(f"FUZZ_SEED={seed}", flush=True)

        @hypothesis.seed(seed)
        @hypothesis.settings(max_examples=20, **COMMON)
        @hypothesis.given(strategy)
        def run(drawn):
            check(drawn)

        run()
        seed += 1
