"""Replaces a builtin that only the baseline beside it uses by one that dawdles. What must be caught: the baseline is
far slower here than in a process that this candidate never entered.

Hacks: 4
Task: silu_and_mul
Caught as: CHEAT_BASELINE
By: clean_baseline, parent_clock
Without: OK
Device: cpu
"""

import time

import torch

from fk_kernels.silu_and_mul.cpu_fused import cpu_fused

_TRUE = torch._C._nn.silu


def _slow(*args, **kwargs):
    time.sleep(0.002)
    return _TRUE(*args, **kwargs)


torch._C._nn.silu = _slow


def silu_and_mul(x, round_activation=True):
    return cpu_fused.fn(x.contiguous(), round_activation)
