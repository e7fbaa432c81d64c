"""Returns zeros and rewrites the result files of its folder when the interpreter exits. What must be caught:
zeros; files are read at once, and children do not get to run exit handlers.

Hacks: 37
Task: silu_and_mul
Caught as: WRONG
By: numeric, rows, floor
Without: OK
Device: cpu
"""

import atexit
from pathlib import Path


def _rewrite():
    for file in Path("/dev/shm").glob("fk-bench-*/child-*/*.bin"):
        file.write_bytes(b"")


atexit.register(_rewrite)


def silu_and_mul(x, round_activation=True):
    return x.new_zeros(*x.shape[:-1], x.shape[-1] // 2)
