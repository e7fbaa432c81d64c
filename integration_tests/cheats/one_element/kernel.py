"""Zeros but for one tiny element, so that no test for an all-zero result sees it. What must be caught: rows 100 %
off.

Hacks: 24
Task: softmax
Caught as: WRONG
By: numeric, floor, rows
Without: OK
Device: cpu
"""


def softmax(x, dtype=None):
    out = x.new_zeros(x.shape, dtype=dtype or x.dtype)
    if out.numel():
        out.view(-1)[0] = 1e-9
    return out
