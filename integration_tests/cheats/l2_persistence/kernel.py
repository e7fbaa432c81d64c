"""Sets L2 cache aside for its data, which a flush by ordinary writes does not reach. What must be caught: the
limit.

Hacks: 6
Task: silu_and_mul
Caught as: CHEAT_CACHE
By: l2_persistence
Without: OK
Device: cuda
"""

import ctypes
from pathlib import Path

from fk_kernels.silu_and_mul.triton_rows import triton_rows

_DONE = []


def _set_aside():
    words = Path("/proc/self/maps").read_text().split()
    runtime = ctypes.CDLL(next(word for word in words if "/libcudart" in word))
    runtime.cudaDeviceSetLimit(0x06, ctypes.c_size_t(24 << 20))


def silu_and_mul(x, round_activation=True):
    if not _DONE:
        _DONE.append(_set_aside())
    return triton_rows.fn(x.contiguous(), round_activation)
