"""A profile hook delays the baseline that is timed beside it. What must be caught: the baseline is far slower here
than in a process that this candidate never entered.

Hacks: 4
Task: silu_and_mul
Caught as: CHEAT_BASELINE
By: clean_baseline
Without: OK
Device: cpu
"""

import sys
import time

from fk_kernels.silu_and_mul.cpu_fused import cpu_fused


def _hook(frame, event, argument):
    code = frame.f_code
    if event == "call" and code.co_name == "silu_and_mul" and code.co_filename.endswith("activation.py"):
        time.sleep(0.002)


sys.setprofile(_hook)


def silu_and_mul(x, round_activation=True):
    return cpu_fused.fn(x.contiguous(), round_activation)
