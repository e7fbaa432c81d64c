"""Compiles on its first call, which takes long; later calls do not.

Task: silu_and_mul
Device: cpu
"""

import time

from fk_kernels.silu_and_mul.cpu_fused import cpu_fused

_COMPILED = []


def silu_and_mul(x, round_activation=True):
    if not _COMPILED:
        time.sleep(0.3)  # stands for a compiler
        _COMPILED.append(cpu_fused.fn)
    return _COMPILED[0](x.contiguous(), round_activation)
