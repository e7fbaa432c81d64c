"""Remembers results by the input's address. Frameworks reuse addresses; CUDA graphs do nothing else. What must be
caught: the last result for new values at the same address.

Hacks: 9
Task: silu_and_mul
Caught as: STALE_OUTPUT
By: reuse, twin, timed_outputs, hidden_shapes, rows, parent_clock
Without: OK
Device: cpu
"""

from fk_kernels.silu_and_mul.cpu_fused import cpu_fused

_CACHE = {}


def silu_and_mul(x, round_activation=True):
    key = (x.data_ptr(), tuple(x.shape))
    if key not in _CACHE:
        _CACHE[key] = cpu_fused.fn(x.contiguous(), round_activation)
    return _CACHE[key].clone()
