"""`--share N`: one in N of the cases of all tests, where the others run elsewhere.

Without it all cases run, but of the relations of `tests/contract` one in `OF_RELATIONS`: other
backends and other contents of the package run others. `--share 1` runs all of them. On PyTorch, on
JAX, which compiles each of them anew, of the slow tests, and with the oldest and the nightly Keras
CI runs one in N. A test of fewer than N cases has one of them in some shares and none in others.
Which ones changes with the package (by `FUZZ_SEED`).
"""

import collections
import os
import zlib

OF_RELATIONS = 4
RELATIONS = "tests/contract/"
SHIFT = int(os.environ.get("FUZZ_SEED", "0"))


def pytest_addoption(parser):
    parser.addoption(
        "--share",
        type=int,
        metavar="N",
        help="run one in N of the cases, some of each test that has so many",
    )


def chosen(names, share, shift):
    """Of names such as "test[case]", those of the share: one in `share` of each test's cases."""
    tests = collections.defaultdict(list)
    for name in names:
        tests[name.partition("[")[0]].append(name)
    found = set()
    for test, cases in tests.items():
        first = (shift + zlib.crc32(test.encode())) % share
        found |= set(cases[first::share])
    return found


def pytest_collection_modifyitems(config, items):
    share = config.getoption("--share")
    relations = [item.nodeid for item in items if item.nodeid.startswith(RELATIONS)]
    others = [item.nodeid for item in items if not item.nodeid.startswith(RELATIONS)]
    names = chosen(relations, share or OF_RELATIONS, SHIFT) | chosen(others, share or 1, SHIFT)
    left_out = [item for item in items if item.nodeid not in names]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item.nodeid in names]
