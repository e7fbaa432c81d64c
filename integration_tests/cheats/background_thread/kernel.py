"""A thread that outlives the call looks through the garbage collector for inputs to come and computes ahead of the
clock. The results are right. What must be caught: work by a thread that the call left behind.

Hacks: 2
Task: silu_and_mul
Caught as: CHEAT_ASYNC
By: threads
Without: OK
Device: cpu
"""

import threading
import time

from fk_kernels.silu_and_mul.cpu_fused import cpu_fused

_STARTED = []


def _look_ahead():
    while True:
        time.sleep(0.05)


def silu_and_mul(x, round_activation=True):
    if not _STARTED:
        _STARTED.append(threading.Thread(target=_look_ahead, daemon=True))
        _STARTED[0].start()
    return cpu_fused.fn(x.contiguous(), round_activation)
