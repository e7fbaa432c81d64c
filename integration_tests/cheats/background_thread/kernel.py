"""A thread that outlives the call goes on working on the inputs and outputs it has seen, beside whatever is timed next.
The results are right. What must be caught: work by a thread that the call left behind.

Hacks: 2
Task: silu_and_mul
Caught as: CHEAT_ASYNC
By: threads, parent_clock, clean_baseline
Without: OK
Device: cpu
"""

import threading

from fk_kernels.silu_and_mul.cpu_fused import cpu_fused

_STARTED = []
_SEEN = []


def _work():
    while True:
        sum(len(x) for x in _SEEN for _ in range(100))


def silu_and_mul(x, round_activation=True):
    _SEEN[:] = [x]
    if not _STARTED:
        _STARTED.append(threading.Thread(target=_work, daemon=True))
        _STARTED[0].start()
    return cpu_fused.fn(x.contiguous(), round_activation)
