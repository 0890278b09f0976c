"""Runs `tests/distribution` on eight virtual devices of this machine."""

import os
import subprocess
import sys

import keras
import pytest

# CI runs slow tests on TensorFlow only.
pytestmark = [pytest.mark.folder]
if keras.config.backend() == "tensorflow":
    pytestmark.append(pytest.mark.slow)

# TensorFlow may mix up the sums over devices of two programs in one process, so that each file has
# its own there.
OF_TENSORFLOW = ("examples", "mirrored", "page", "two_processes")
PARTS = [""]
if keras.config.backend() == "tensorflow":
    PARTS = [f"/test_{name}.py" for name in OF_TENSORFLOW]


@pytest.mark.parametrize("part", PARTS)
def test_eight_virtual_devices(part, pytestconfig):
    backend = keras.config.backend()
    # Programs for eight devices take eight times as long to optimize.
    flags = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    environment = {
        **os.environ,
        "VIRTUAL_DEVICES": "8",
        "KERAS_BACKEND": backend,
        "GLOO_SOCKET_IFNAME": "lo",
        "XLA_FLAGS": f"{flags} --xla_force_host_platform_device_count=8",
    }
    tests = f"tests/distribution{part}"
    share = pytestconfig.getoption("--share") or 1
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += [f"--share={share}", tests]
    # Not a worker of the run that this test belongs to.
    environment = {k: v for k, v in environment.items() if not k.startswith("PYTEST_")}
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800)
    if found.returncode == pytest.ExitCode.NO_TESTS_COLLECTED and "deselected" in found.stdout:
        pytest.skip("none of its cases is in this share")
    assert found.returncode == 0, found.stdout[-10000:] + found.stderr[-2000:]
    assert " passed" in found.stdout
