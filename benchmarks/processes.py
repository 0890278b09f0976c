"""Separate processes, to measure memory."""

import pathlib
import re
import resource
import subprocess
import sys


def answer(module, *arguments):
    """The last line that `python -m module` prints."""
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip().splitlines() or [""]
        raise RuntimeError(f"exit {done.returncode}: {said[-1]}")
    return done.stdout.splitlines()[-1]


def peak_bytes():
    """The most resident memory that this process has had so far."""
    status = pathlib.Path("/proc/self/status")
    high = re.search(r"VmHWM:\s*(\d+) kB", status.read_text()) if status.exists() else None
    if high:
        # Not `ru_maxrss`: on Linux a process inherits that from the one which started it.
        return int(high[1]) * 1024
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else size * 1024
