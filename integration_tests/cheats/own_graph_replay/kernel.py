"""Captures a graph of its own over a copy of its first input and replays it ever after. What must be caught:
results that belong to earlier inputs.

Hacks: 16
Task: silu_and_mul
Caught as: STALE_OUTPUT
By: reuse, twin, rows, timed_outputs
Without: OK
Device: cuda
"""

import torch

from fk_kernels.silu_and_mul.triton_rows import triton_rows

_GRAPHS = {}


def silu_and_mul(x, round_activation=True):
    key = tuple(x.shape)
    if key not in _GRAPHS and not torch.cuda.is_current_stream_capturing() and x.numel():
        copy = x.clone()
        triton_rows.fn(copy, round_activation)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = triton_rows.fn(copy, round_activation)
        _GRAPHS[key] = (graph, copy, out)
    if key not in _GRAPHS or torch.cuda.is_current_stream_capturing():
        return triton_rows.fn(x.contiguous(), round_activation)
    graph, _, out = _GRAPHS[key]
    graph.replay()
    return out.clone()
