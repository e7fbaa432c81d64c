"""Returns 1 / columns everywhere, whatever the input: the right sum, the right magnitude. What must be caught:
rows far off.

Hacks: 23
Task: softmax
Caught as: WRONG
By: numeric, floor
Without: OK
Device: cpu
"""


def softmax(x, dtype=None):
    return x.new_full(x.shape, 1.0 / max(x.shape[-1], 1), dtype=dtype or x.dtype)
