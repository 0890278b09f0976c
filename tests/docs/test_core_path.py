"""How much one must read to follow a call: it stays little."""

import pytest

from tests import core_path

pytestmark = pytest.mark.any_backend


def test_the_core_path_is_short():
    assert sum(core_path.core().values()) < 2000


def test_the_core_path_has_what_a_call_runs():
    run = core_path.functions_run()
    assert {"layers/attention.py", "layers/heads.py", "kernels/reference.py"} <= set(run)
    beside = {name for name in run if name.startswith(("backend/", "layers/", "kernels/"))}
    # Kernels before `reference` say why they cannot run; layers convert their inputs, and Keras
    # calls `compute_mask`, one line.
    assert beside - set(core_path.CORE) <= {
        "backend/interface.py",
        *(f"backend/{name}.py" for name in ("tensorflow", "jax", "torch")),
        *(f"kernels/{name}.py" for name in ("banded", "blockwise", "fused", "single_query")),
        "layers/mask_names.py",
        "layers/symbolic.py",
        "layers/uncast_inputs.py",
    }
