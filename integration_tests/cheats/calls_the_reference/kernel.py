"""Imports the task's reference and calls it, as a candidate class that inherits from the reference class does.
What must be caught: the call.

Hacks: 34
Task: silu_and_mul
Caught as: FALLBACK
By: fallback
Without: OK
Device: cpu
"""

from fk_tasks.activation import silu_and_mul as _reference


def silu_and_mul(x, round_activation=True):
    try:
        raise NotImplementedError
    except Exception:  # noqa: BLE001  what such candidates do
        return _reference(x, round_activation)
