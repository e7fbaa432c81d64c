"""As slow_baseline, but in proportion to what the baseline takes, by little enough that comparing its time with that in
another process excuses it. What must be caught: the speedup is not there on the parent's clock.

Hacks: 4
Task: silu_and_mul
Caught as: CHEAT_BASELINE
By: parent_clock, clean_baseline
Without: OK
Device: cpu
"""

import time

import torch

from fk_kernels.silu_and_mul.cpu_fused import cpu_fused

_TRUE = torch._C._nn.silu


def _slow(x, *args, **kwargs):
    start = time.perf_counter()
    result = _TRUE(x, *args, **kwargs)
    until = start + 3.2 * (time.perf_counter() - start)
    while time.perf_counter() < until:
        pass
    return result


torch._C._nn.silu = _slow


def silu_and_mul(x, round_activation=True):
    return cpu_fused.fn(x.contiguous(), round_activation)
