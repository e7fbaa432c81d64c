"""Writes only where the result is not zero and relies on fresh memory to hold zeros. What must be caught: NaN-
filled memory shows through.

Hacks: 31
Task: softmax
Caught as: WRONG
By: edge, poison
Without: OK
Device: cpu
"""

import torch

from fk_kernels.softmax.cpu_chunks import cpu_chunks


def softmax(x, dtype=None):
    result = cpu_chunks.fn(x.contiguous(), dtype)
    out = torch.empty_like(result)
    written = result != 0
    out[written] = result[written]
    return out
