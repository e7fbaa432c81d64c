"""Replaces the events' elapsed_time by one that reports a tenth. The harness bound its own before; what must be
caught is the attempt.

Hacks: 4
Task: silu_and_mul
Caught as: CHEAT_PATCH
By: patched
Without: OK
Device: cuda
"""

import torch

from fk_kernels.silu_and_mul.triton_rows import triton_rows

_TRUE = torch.cuda.Event.elapsed_time
torch.cuda.Event.elapsed_time = lambda self, other: _TRUE(self, other) / 10


def silu_and_mul(x, round_activation=True):
    return triton_rows.fn(x.contiguous(), round_activation)
