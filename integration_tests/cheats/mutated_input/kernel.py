"""Uses its input as scratch space. What must be caught: bytes of a read-only argument that changed.

Hacks: 21
Task: silu_and_mul
Caught as: MUTATED_INPUT
By: mutation
Without: OK
Device: cpu
"""

from fk_kernels.silu_and_mul.cpu_fused import cpu_fused


def silu_and_mul(x, round_activation=True):
    result = cpu_fused.fn(x.contiguous(), round_activation)
    x[..., : result.shape[-1]].copy_(result)
    return result
