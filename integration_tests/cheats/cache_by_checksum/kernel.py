"""Remembers results by a checksum over the first elements. What must be caught: the last result for inputs that
differ elsewhere only.

Hacks: 12
Task: silu_and_mul
Caught as: STALE_OUTPUT
By: twin
Without: OK
Device: cpu
"""

from fk_kernels.silu_and_mul.cpu_fused import cpu_fused

_CACHE = {}


def silu_and_mul(x, round_activation=True):
    key = (tuple(x.shape), float(x.reshape(-1)[:64].double().sum()) if x.numel() else 0.0)
    if key not in _CACHE:
        _CACHE[key] = cpu_fused.fn(x.contiguous(), round_activation)
    return _CACHE[key].clone()
