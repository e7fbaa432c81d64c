"""A mode that intercepts every function of torch stays on after the import and slows down whatever is timed beside it.
What must be caught: the mode that was left on.

Hacks: 4
Task: silu_and_mul
Caught as: CHEAT_PATCH
By: modes, clean_baseline, parent_clock
Without: OK
Device: cpu
"""

import time

from torch.overrides import TorchFunctionMode

from fk_kernels.silu_and_mul.cpu_fused import cpu_fused


class Slow(TorchFunctionMode):
    """Delays the baseline's activation."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if getattr(func, "__name__", "") == "silu":
            time.sleep(0.002)
        return func(*args, **(kwargs or {}))


Slow().__enter__()


def silu_and_mul(x, round_activation=True):
    return cpu_fused.fn(x.contiguous(), round_activation)
