"""Replaces the clock by one that runs ten times slower. The harness bound its clock before, so the number would be
honest; what must be caught is the attempt.

Hacks: 4
Task: silu_and_mul
Caught as: CHEAT_PATCH
By: patched
Without: OK
Device: cpu
"""

import time

from fk_kernels.silu_and_mul.cpu_fused import cpu_fused

_TRUE = time.perf_counter_ns
time.perf_counter_ns = lambda: _TRUE() // 10


def silu_and_mul(x, round_activation=True):
    return cpu_fused.fn(x.contiguous(), round_activation)
