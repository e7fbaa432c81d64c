"""Reads the seed from the harness's frames, makes the inputs of the next seed itself and keeps that result for the
call it expects. What must be caught: seeds are drawn at random for every call, so the kept result is for other
inputs.

Hacks: 28
Task: silu_and_mul
Caught as: STALE_OUTPUT
By: reuse, twin, timed_outputs, rows, hidden_shapes
Without: OK
Device: cpu
"""

import sys

from fk_kernels.silu_and_mul.cpu_fused import cpu_fused

_KEPT = {}


def _seed():
    frame = sys._getframe(1)
    while frame is not None:
        recipe = frame.f_locals.get("recipe")
        if isinstance(recipe, dict) and "seed" in recipe:
            return recipe["seed"]
        frame = frame.f_back
    return 0


def silu_and_mul(x, round_activation=True):
    key = tuple(x.shape)
    if key not in _KEPT:
        _KEPT[key] = (_seed(), cpu_fused.fn(x.contiguous(), round_activation))
    return _KEPT[key][1].clone()  # "the next seed is the last one": the usual constant of a harness
