"""Faults that the suite must see: `python -m tests.mutants` makes each and runs the tests named.

`mutants.toml` has, for each, the file of the package, the text that becomes another, and arguments
of pytest, of which one test must fail. It runs on the backend of `KERAS_BACKEND`, where PyTorch is
the quickest; words after the command choose the mutants that have one of them.
"""

import concurrent.futures
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = ROOT / "keras_attention"


def mutants(words=()):
    """Those of the list that have one of the words; all without any."""
    text = pathlib.Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    listed = tomllib.loads(text)["mutant"]
    return [x for x in listed if not words or any(word in str(x) for word in words)]


def mutated(mutant, package=PACKAGE):
    """The text of the file with the fault; an error if what it changes is not there once."""
    text = (package / mutant["file"]).read_text(encoding="utf-8")
    found = text.count(mutant["old"])
    if found != 1:
        raise ValueError(f"{mutant['file']} has this {found} times: {mutant['old']}")
    return text.replace(mutant["old"], mutant["new"])


def caught(mutant):
    """Whether a test fails, and the last line of the run."""
    with tempfile.TemporaryDirectory() as folder:
        package = pathlib.Path(folder, PACKAGE.name)
        shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
        (package / mutant["file"]).write_text(mutated(mutant), encoding="utf-8")
        # Appended, or the package beside the tests would come before the one with the fault.
        options = "-qx", "-p", "no:cacheprovider", "--import-mode=append", "--rootdir", ROOT
        paths = (ROOT / x if x.startswith("tests/") else x for x in shlex.split(mutant["tests"]))
        run = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *paths],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join((folder, str(ROOT)))},
            capture_output=True,
            text=True,
        )
        # 1 is that of tests that failed.
        return run.returncode == 1, (run.stdout.splitlines() or run.stderr.splitlines() or [""])[-1]


if __name__ == "__main__":
    chosen, survived = mutants(sys.argv[1:]), []
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for mutant, (dead, line) in zip(chosen, pool.map(caught, chosen), strict=True):
            print("caught  " if dead else "SURVIVED", mutant["fault"], "|", line, flush=True)
            survived += [] if dead else [mutant]
    print(f"{len(chosen) - len(survived)} of {len(chosen)} caught")
    sys.exit(bool(survived))
