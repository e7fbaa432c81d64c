"""Launches its work on a stream of its own and does not join it. What must be caught: in a graph, work that
escapes the capture is not replayed. (Eager calls are charged for it: their clock waits for the whole device.)

Hacks: 1
Task: silu_and_mul
Caught as: STALE_OUTPUT
By: replay, fresh_timed, timed_outputs, parent_clock, floor
Without: OK
Device: cuda
"""

import torch

from fk_kernels.silu_and_mul.triton_rows import triton_rows

_STREAMS = []


def silu_and_mul(x, round_activation=True):
    out = torch.empty(*x.shape[:-1], x.shape[-1] // 2, dtype=x.dtype, device=x.device)
    if not _STREAMS:
        _STREAMS.append(torch.cuda.Stream())
    if not torch.cuda.is_current_stream_capturing():
        _STREAMS[0].wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(_STREAMS[0]):
        triton_rows.fn(x.contiguous(), round_activation, out=out)
    return out
