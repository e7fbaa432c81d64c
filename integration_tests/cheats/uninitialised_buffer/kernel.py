"""Returns memory as it comes, hoping that the reference's result was there a moment ago. What must be caught: a
result that nobody wrote.

Hacks: 17
Task: silu_and_mul
Caught as: WRONG
By: poison, oracle_elsewhere, timed_outputs, floor, repeat, rows, reuse, twin
Without: OK
Device: cpu
"""

import gc

import torch


def silu_and_mul(x, round_activation=True):
    out = torch.empty(*x.shape[:-1], x.shape[-1] // 2, dtype=x.dtype)
    # The expected values lie in the process only when the harness computes them there.
    for other in gc.get_objects():
        if type(other) is torch.Tensor and other.shape == out.shape and other.dtype == out.dtype and other is not out:
            return out.copy_(other)
    return out
