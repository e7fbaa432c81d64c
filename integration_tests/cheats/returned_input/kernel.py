"""Returns its input. What must be caught: a result in the memory of an argument.

Hacks: 22
Task: softmax
Caught as: BAD_OUTPUT
By: structure, numeric, nan_placement, floor
Without: OK
Device: cpu
"""


def softmax(x, dtype=None):
    return x
