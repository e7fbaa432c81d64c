"""Launches on the default stream whatever the current one is, so that a captured graph is empty and replays in
nanoseconds. What must be caught: a replay that writes nothing.

Hacks: 8
Task: silu_and_mul
Caught as: STALE_OUTPUT
By: replay, fresh_timed, timed_outputs, parent_clock, floor
Without: OK
Device: cuda
"""

import torch

from fk_kernels.silu_and_mul.triton_rows import triton_rows


def silu_and_mul(x, round_activation=True):
    out = torch.empty(*x.shape[:-1], x.shape[-1] // 2, dtype=x.dtype, device=x.device)
    with torch.cuda.stream(torch.cuda.default_stream()):
        triton_rows.fn(x.contiguous(), round_activation, out=out)
    return out
