"""Right for the row counts that the task lists, nothing at all for others. What must be caught: a row count that
no file names.

Hacks: 28, 35
Task: silu_and_mul
Caught as: WRONG
By: hidden_shapes, edge, rows
Without: OK
Device: cpu
"""

from fk_kernels.silu_and_mul.cpu_fused import cpu_fused

_LISTED = {1, 8, 32, 128, 256, 512, 2048, 8192}


def silu_and_mul(x, round_activation=True):
    if x.shape[0] not in _LISTED:
        return x.new_zeros(*x.shape[:-1], x.shape[-1] // 2)
    return cpu_fused.fn(x.contiguous(), round_activation)
