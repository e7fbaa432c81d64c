"""Replaces no function: it walks up the stack to the harness's list of samples and divides its own by six. What
must be caught: times that a second process on the parent's clock contradicts.

Hacks: 4
Task: silu_and_mul
Caught as: CHEAT_TIMER
By: parent_clock
Without: OK
Device: cpu
"""

import sys

from fk_kernels.silu_and_mul.cpu_fused import cpu_fused


def _edit(frame):
    while frame is not None:
        names = frame.f_locals
        if "seconds" in names and "schedule" in names and isinstance(names["seconds"], list):
            done = names["self"].__dict__.setdefault("edited", {}).setdefault(id(names["seconds"]), set())
            for number in range(len(names["seconds"])):
                if number not in done and names["schedule"][number][0] == "c":
                    done.add(number)
                    names["seconds"][number] /= 6
            return
        frame = frame.f_back


def silu_and_mul(x, round_activation=True):
    _edit(sys._getframe(1))
    return cpu_fused.fn(x.contiguous(), round_activation)
