"""`--share N`: one in N of the cases of each test, at least one, where the others run elsewhere.

CI runs every case on TensorFlow and PyTorch. On JAX, which compiles each of them anew, of the slow
tests, and with the oldest and the nightly Keras it runs every test with a case in N, others for
each change of the package (by `FUZZ_SEED`).
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
        help="run one in N of the cases of each test, at least one",
    )


def pytest_collection_modifyitems(config, items):
    share = config.getoption("--share")
    tests = collections.defaultdict(list)
    for item in items:
        tests[item.nodeid.partition("[")[0]].append(item)
    left_out = set()
    for name, cases in tests.items():
        first = (SHIFT + zlib.crc32(name.encode())) % min(share, len(cases))
        left_out |= set(cases) - set(cases[first::share])
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]
