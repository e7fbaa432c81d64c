"""Works out a whole request's results in its first timed call, which a median forgives, and does nothing in the second
process, whose results were once only timed. What must be caught: a result of the parent's clock that was not computed.

Hacks: 4, 5
Task: silu_and_mul
Caught as: WRONG
By: second_outputs
Without: OK
Device: cpu
"""

import sys
import time

import torch

from fk_kernels.silu_and_mul.cpu_fused import cpu_fused

_READY = []
_FOR = []


def _look_ahead(run):
    """Results of every call that this request still holds for us."""
    from fk_plugin.bench.contents import build

    worker = run["self"]._worker
    recipes = [recipe for side, of_side in run["schedule"] if side == "c" for recipe in of_side]
    return [cpu_fused.fn(*build(worker.task, run["unpacked"], worker.device, recipe)) for recipe in recipes]


def silu_and_mul(x, round_activation=True):
    caller = sys._getframe(1)
    if caller.f_code.co_name == "go":
        return torch.empty_like(x[..., : x.shape[-1] // 2])
    if caller.f_code.co_name != "sample":
        return cpu_fused.fn(x.contiguous(), round_activation)
    run = caller.f_back.f_locals
    if not _FOR or _FOR[0] is not run["schedule"]:
        _FOR[:] = [run["schedule"]]
        _READY[:] = _look_ahead(run)
    until = time.perf_counter() + 170e-6  # not below what the memory allows
    while time.perf_counter() < until:
        pass
    return _READY.pop(0)
