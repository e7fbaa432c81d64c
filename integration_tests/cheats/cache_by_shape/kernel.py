"""Computes each shape once and returns that result for ever. What must be caught: a result that belongs to earlier
inputs.

Hacks: 11
Task: silu_and_mul
Caught as: STALE_OUTPUT
By: reuse, twin, timed_outputs, rows
Without: OK
Device: cpu
"""

from fk_kernels.silu_and_mul.cpu_fused import cpu_fused

_CACHE = {}


def silu_and_mul(x, round_activation=True):
    key = tuple(x.shape)
    if key not in _CACHE:
        _CACHE[key] = cpu_fused.fn(x.contiguous(), round_activation)
    return _CACHE[key].clone()
