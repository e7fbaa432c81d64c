"""silu_and_mul for CUDA in Triton: one program for BLOCK columns of one row.

Memory-bound at every size that engines run, so the only rule is to touch each byte once and to have enough programs
in flight: a decode step of one token over 14,336 columns still starts 14 of them.
"""

import torch
import triton
import triton.language as tl

from fk_plugin.kernel import Requires, kernel

BLOCK = 1024


@triton.jit
def fk_silu_and_mul(x_ptr, out_ptr, row_stride, half, ROUND: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)  # row * stride passes 2^31 from 75 thousand tokens of 28,672 columns
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < half
    at = x_ptr + row * row_stride + column
    gate = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(at + half, mask=mask, other=0.0).to(tl.float32)
    active = gate / (1.0 + tl.exp(-gate))
    dtype = out_ptr.dtype.element_ty
    if ROUND:
        active = active.to(dtype).to(tl.float32)
    tl.store(out_ptr + row * half + column, (active * up).to(dtype), mask=mask)


def _guard(x: torch.Tensor, round_activation: bool = True) -> str | None:
    if x.stride(-1) != 1:
        return "last axis not contiguous"
    if x.dim() > 2 and not x.is_contiguous():
        return "more than two axes and not contiguous"
    return None


@kernel(
    "silu_and_mul",
    requires=Requires(device="cuda", dtypes=("float32", "float16", "bfloat16"), modules=("triton",)),
    guard=_guard,
)
def triton_rows(x: torch.Tensor, round_activation: bool = True, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """See fk_tasks.activation.silu_and_mul. `out`, if given, is contiguous [..., D]."""
    half = x.shape[-1] // 2
    if out is None:
        out = torch.empty((*x.shape[:-1], half), dtype=x.dtype, device=x.device)
    if out.numel() == 0:
        return out
    rows = out.numel() // half
    row_stride = x.stride(-2) if x.dim() > 1 else 0
    grid = (rows, triton.cdiv(half, BLOCK))
    # Triton launches on the current device, which need not be the tensor's.
    with torch.cuda.device(x.device):
        fk_silu_and_mul[grid](x, out, row_stride, half, ROUND=round_activation, BLOCK=BLOCK)
    return out
