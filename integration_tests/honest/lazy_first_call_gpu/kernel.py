"""Compiles on its first call, which takes long; later calls do not.

Task: silu_and_mul
Device: cuda
"""

import time

from fk_kernels.silu_and_mul.triton_rows import triton_rows

_COMPILED = []


def silu_and_mul(x, round_activation=True):
    if not _COMPILED:
        time.sleep(0.3)  # stands for a compiler
        _COMPILED.append(triton_rows.fn)
    return _COMPILED[0](x.contiguous(), round_activation)
