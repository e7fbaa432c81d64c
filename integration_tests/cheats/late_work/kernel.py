"""In timed calls the result is handed over empty, and a thread fills it in just after. What must be caught: a
result that changes after the clock has stopped.

Hacks: 2
Task: silu_and_mul
Caught as: CHEAT_ASYNC
By: late
Without: OK
Device: cpu
"""

import sys
import threading

import torch

from fk_kernels.silu_and_mul.cpu_fused import cpu_fused


def silu_and_mul(x, round_activation=True):
    if sys._getframe(1).f_code.co_name not in ("sample", "go"):
        return cpu_fused.fn(x.contiguous(), round_activation)
    out = torch.empty(*x.shape[:-1], x.shape[-1] // 2, dtype=x.dtype)
    threading.Timer(0.001, lambda: out.copy_(cpu_fused.fn(x.contiguous(), round_activation))).start()
    return out
