"""Takes another path by the size of the input, as libraries do.

Task: silu_and_mul
Device: cuda
"""

import torch

from fk_kernels.silu_and_mul.triton_rows import triton_rows


def silu_and_mul(x, round_activation=True):
    if x.shape[0] > 100:
        return triton_rows.fn(x.contiguous(), round_activation)
    out = torch.empty(*x.shape[:-1], x.shape[-1] // 2, dtype=x.dtype, device=x.device)
    for row in range(0, x.shape[0], 50):
        triton_rows.fn(x[row : row + 50].contiguous(), round_activation, out=out[row : row + 50])
    return out
