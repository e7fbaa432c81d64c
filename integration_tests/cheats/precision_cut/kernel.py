"""Computes in three mantissa bits. What must be caught: errors far beyond what production's kernels lose.

Hacks: 27
Task: silu_and_mul
Caught as: WRONG
By: numeric, rounding
Without: OK
Device: cpu
"""

import torch

from fk_kernels.silu_and_mul.cpu_fused import cpu_fused


def silu_and_mul(x, round_activation=True):
    return cpu_fused.fn(x.contiguous().to(torch.float8_e4m3fn).to(x.dtype), round_activation)
