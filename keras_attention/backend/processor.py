"""What the processor can do, of which no framework tells."""

import functools
import pathlib


@functools.cache
def multiplies_bfloat16():
    """Whether it has instructions for products of bfloat16, as far as Linux says."""
    try:
        flags = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    except OSError:
        return False
    return not {"avx512_bf16", "amx_bf16"}.isdisjoint(flags)
