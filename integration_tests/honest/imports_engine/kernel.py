"""Imports an engine, which replaces functions of torch while it is imported.

Task: silu_and_mul
Device: cpu
"""

from vllm import _custom_ops  # noqa: F401

from fk_kernels.silu_and_mul.cpu_fused import cpu_fused


def silu_and_mul(x, round_activation=True):
    return cpu_fused.fn(x.contiguous(), round_activation)
