"""Leaves one row in twenty out, where a comparison lets a share of elements be wrong. What must be caught: a row
that is 100 % off.

Hacks: 25
Task: silu_and_mul
Caught as: WRONG
By: numeric, rows
Without: OK
Device: cpu
"""

from fk_kernels.silu_and_mul.cpu_fused import cpu_fused


def silu_and_mul(x, round_activation=True):
    result = cpu_fused.fn(x.contiguous(), round_activation)
    if x.dim() == 2 and x.shape[0] > 19:
        result[19::20] = 0
    return result
