"""A correct kernel that happens to be fast.

Task: silu_and_mul
Device: cpu
"""

from fk_kernels.silu_and_mul.cpu_fused import cpu_fused


def silu_and_mul(x, round_activation=True):
    return cpu_fused.fn(x.contiguous(), round_activation)
