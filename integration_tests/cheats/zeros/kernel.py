"""Returns zeros, which an absolute tolerance takes for a softmax over many columns. What must be caught: every row
is 100 % off.

Hacks: 23
Task: softmax
Caught as: WRONG
By: numeric, floor
Without: OK
Device: cpu
"""


def softmax(x, dtype=None):
    return x.new_zeros(x.shape, dtype=dtype or x.dtype)
