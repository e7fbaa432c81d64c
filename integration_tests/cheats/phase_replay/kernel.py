"""Computes while it is being judged and replays that result while it is being timed. What must be caught: results
of timed calls that belong to earlier inputs.

Hacks: 15
Task: silu_and_mul
Caught as: STALE_OUTPUT
By: timed_outputs, floor
Without: OK
Device: cpu
"""

import sys

from fk_kernels.silu_and_mul.cpu_fused import cpu_fused

_LAST = {}


def silu_and_mul(x, round_activation=True):
    key = tuple(x.shape)
    if sys._getframe(1).f_code.co_name in ("sample", "go") and key in _LAST:
        return _LAST[key].clone()
    result = cpu_fused.fn(x.contiguous(), round_activation)
    _LAST.setdefault(key, result)
    return result
