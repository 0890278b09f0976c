"""The walk-throughs of docs/design.md run as they are, outside of the package, on every backend."""

from keras_attention import kernels
from keras_attention.layers import kv_cache
from tests.doctests import ROOT, programs


def test_the_walk_throughs_run(monkeypatch):
    # A block that fails leaves its kernel or layout in these copies.
    monkeypatch.setattr(kernels, "KERNELS", list(kernels.KERNELS))
    monkeypatch.setattr(kv_cache, "LAYOUTS", list(kv_cache.LAYOUTS))
    page = list(programs(ROOT / "docs/design.md"))
    assert len(page) == 5  # a position, a normalization, a kernel, a cache layout, a preset
    names = {"__name__": "__main__"}
    for _, program in page:
        exec(program, names)
