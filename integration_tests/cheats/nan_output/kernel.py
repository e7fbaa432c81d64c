"""Returns NaN, which no `error > tolerance` ever reports. What must be caught: NaN where the reference has none.

Hacks: 29
Task: silu_and_mul
Caught as: WRONG
By: nan_placement, numeric, floor
Without: OK
Device: cpu
"""


def silu_and_mul(x, round_activation=True):
    return x.new_full((*x.shape[:-1], x.shape[-1] // 2), float("nan"))
