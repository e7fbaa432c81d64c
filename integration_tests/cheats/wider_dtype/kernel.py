"""Returns float32 for bfloat16, where a check converts both sides first. What must be caught: the dtype.

Hacks: 30
Task: silu_and_mul
Caught as: BAD_OUTPUT
By: structure, rounding
Without: OK
Device: cpu
"""

from fk_kernels.silu_and_mul.cpu_fused import cpu_fused


def silu_and_mul(x, round_activation=True):
    return cpu_fused.fn(x.contiguous(), round_activation).float()
