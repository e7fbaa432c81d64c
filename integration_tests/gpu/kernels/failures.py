"""Kernels of silu_and_mul that fail in ways only a GPU has."""

import torch
import triton
import triton.language as tl


@triton.jit
def _write_far(out, offset):
    tl.store(out + offset, 1.0)


def illegal_access(x, round_activation=True):
    out = torch.empty(*x.shape[:-1], x.shape[-1] // 2, dtype=x.dtype, device=x.device)
    _write_far[(1,)](out, 1 << 45)
    return out


def wrong_device(x, round_activation=True):
    return torch.empty(*x.shape[:-1], x.shape[-1] // 2, dtype=x.dtype)


def out_of_memory(x, round_activation=True):
    return torch.empty(1 << 42, dtype=torch.uint8, device=x.device)


def infinite_loop(x, round_activation=True):
    while True:
        pass
