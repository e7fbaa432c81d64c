"""Writes past the end of its input, into slack that an allocator leaves. What must be caught: the guard zone
behind it.

Hacks: 32
Task: silu_and_mul
Caught as: OUT_OF_BOUNDS
By: guard_zones
Without: OK
Device: cpu
"""

import ctypes

from fk_kernels.silu_and_mul.cpu_fused import cpu_fused


def silu_and_mul(x, round_activation=True):
    if x.is_contiguous() and x.numel():
        ctypes.memset(x.data_ptr() + x.numel() * x.element_size(), 0, 16)
    return cpu_fused.fn(x.contiguous(), round_activation)
