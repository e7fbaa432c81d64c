"""An optimised path that no input reaches stands beside the path that is taken, which is PyTorch. What must be
caught: the reference's own operators did the work.

Hacks: 41
Task: silu_and_mul
Caught as: FALLBACK
By: fallback
Without: OK
Device: cpu
"""

import torch.nn.functional as F

from fk_kernels.silu_and_mul.cpu_fused import cpu_fused


def silu_and_mul(x, round_activation=True):
    half = x.shape[-1] // 2
    if x.shape[-1] == 7:
        return cpu_fused.fn(x.contiguous(), round_activation)
    if not round_activation:
        return (F.silu(x[..., :half].float()) * x[..., half:].float()).to(x.dtype)
    return F.silu(x[..., :half]) * x[..., half:]
