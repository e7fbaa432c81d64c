"""Sleeps in warm-up calls, so that a harness which derives its counts from them measures little. What must be
caught: warm-up calls that cost many times a timed one.

Hacks: 5
Task: silu_and_mul
Caught as: CHEAT_WARMUP
By: warmup
Without: OK
Device: cpu
"""

import sys
import time

from fk_kernels.silu_and_mul.cpu_fused import cpu_fused


def _warming_up():
    frame = sys._getframe(1)
    while frame is not None:
        if "schedule" in frame.f_locals:
            return not frame.f_locals["keep"]
        frame = frame.f_back
    return False


def silu_and_mul(x, round_activation=True):
    if _warming_up():
        time.sleep(0.1)
    return cpu_fused.fn(x.contiguous(), round_activation)
