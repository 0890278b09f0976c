"""`--share N`: one in N of the cases of all tests, where the others run elsewhere.

On JAX, which compiles each of them anew, and of the slow tests CI runs one in N: of layers and of
the relations of `tests/contract` half on JAX, where PyTorch and TensorFlow have all. A test of
fewer than N cases has one of them in some shares and none in others. Which ones changes with the
package (by `FUZZ_SEED`).
"""

import collections
import os
import zlib

SHIFT = int(os.environ.get("FUZZ_SEED", "0"))


def pytest_addoption(parser):
    parser.addoption(
        "--share",
        type=int,
        default=1,
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
    names = chosen([item.nodeid for item in items], config.getoption("--share"), SHIFT)
    left_out = [item for item in items if item.nodeid not in names]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item.nodeid in names]
