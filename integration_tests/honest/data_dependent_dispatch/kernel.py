"""Looks at the values and takes another path for rows that need it, as a kernel for sparse data does.

Task: silu_and_mul
Device: cpu
"""

import torch

from fk_kernels.silu_and_mul.cpu_fused import cpu_fused


def silu_and_mul(x, round_activation=True):
    if x.numel() and bool((x == 0).all()):
        return torch.zeros(*x.shape[:-1], x.shape[-1] // 2, dtype=x.dtype)
    return cpu_fused.fn(x.contiguous(), round_activation)
