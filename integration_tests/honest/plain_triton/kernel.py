"""A correct Triton kernel.

Task: silu_and_mul
Device: cuda
"""

from fk_kernels.silu_and_mul.triton_rows import triton_rows


def silu_and_mul(x, round_activation=True):
    return triton_rows.fn(x.contiguous(), round_activation)
