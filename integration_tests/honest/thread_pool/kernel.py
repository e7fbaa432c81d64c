"""A pool of threads that is made once, waits between calls and is waited for in each: an honest use of several cores.

Task: silu_and_mul
Device: cpu
"""

from concurrent.futures import ThreadPoolExecutor

import torch

from fk_kernels.silu_and_mul.cpu_fused import cpu_fused

_POOL = ThreadPoolExecutor(2)


def silu_and_mul(x, round_activation=True):
    if x.shape[0] < 2:
        return cpu_fused.fn(x.contiguous(), round_activation)
    halves = _POOL.map(lambda part: cpu_fused.fn(part.contiguous(), round_activation), x.chunk(2))
    return torch.cat(tuple(halves))
