"""The result is a tensor subclass that computes when somebody looks, which is after the clock has stopped. What
must be caught: a result that is not exactly a torch.Tensor.

Hacks: 3
Task: silu_and_mul
Caught as: BAD_OUTPUT
By: structure, timed_outputs, floor, parent_clock
Without: OK
Device: cpu
"""

import torch

from fk_kernels.silu_and_mul.cpu_fused import cpu_fused


class Lazy(torch.Tensor):
    """Runs its recipe on first use."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        for value in args:
            if isinstance(value, Lazy) and getattr(value, "recipe", None):
                recipe, value.recipe = value.recipe, None
                with torch._C.DisableTorchFunctionSubclass():
                    torch.Tensor.as_subclass(value, torch.Tensor).copy_(recipe())
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


def silu_and_mul(x, round_activation=True):
    out = torch.empty(*x.shape[:-1], x.shape[-1] // 2, dtype=x.dtype).as_subclass(Lazy)
    out.recipe = lambda: cpu_fused.fn(x.contiguous(), round_activation)
    return out
