"""Stores results in a file and loads them in every later process. What must be caught: a result that belongs to
earlier inputs, wherever it was kept.

Hacks: 13
Task: silu_and_mul
Caught as: STALE_OUTPUT
By: reuse, twin, timed_outputs, rows
Without: OK
Device: cpu
"""

import os
from pathlib import Path

import torch

from fk_kernels.silu_and_mul.cpu_fused import cpu_fused

_FOLDER = Path(os.environ["FK_CHEAT_DIR"])


def silu_and_mul(x, round_activation=True):
    file = _FOLDER / ("x".join(map(str, x.shape)) + ".pt")
    if not file.exists():
        torch.save(cpu_fused.fn(x.contiguous(), round_activation), file)
    return torch.load(file)
