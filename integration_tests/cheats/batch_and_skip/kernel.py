"""Takes the first call for the first of a batch: computes every input it can find, then answers the calls that
follow from that list by position. What must be caught: results that do not belong to the call's inputs.

Hacks: 14
Task: silu_and_mul
Caught as: STALE_OUTPUT
By: reuse, twin, timed_outputs, rows
Without: OK
Device: cpu
"""

import gc

import torch

from fk_kernels.silu_and_mul.cpu_fused import cpu_fused

_BATCH = {}
_NEXT = {}


def silu_and_mul(x, round_activation=True):
    key = tuple(x.shape)
    if key not in _BATCH:
        found = [o for o in gc.get_objects() if type(o) is torch.Tensor and o.shape == x.shape and o.dtype == x.dtype]
        mine = [x] + [o for o in found if o is not x and o.data_ptr() != x.data_ptr()]
        _BATCH[key] = [cpu_fused.fn(o.contiguous(), round_activation) for o in mine]
    position = _NEXT.get(key, 0)
    _NEXT[key] = position + 1
    return _BATCH[key][position % len(_BATCH[key])].clone()
