"""gelu_and_mul for CUDA in Triton: one program for BLOCK columns of one row.

Memory-bound at every size that engines run, so the only rule is to touch each byte once and to have enough programs
in flight: a decode step of one token over 14,336 columns still starts 14 of them.
"""

import torch
import triton
import triton.language as tl

from fk_plugin.kernel import Requires, kernel

BLOCK = 1024
_MAX_BLOCKS = 65535  # grid axis 1


@triton.jit
def fk_gelu_and_mul(x_ptr, out_ptr, row_stride, half, TANH: tl.constexpr, ROUND: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)  # row * stride passes 2^31 from 75 thousand tokens of 28,672 columns
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < half
    at = x_ptr + row * row_stride + column
    gate = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(at + half, mask=mask, other=0.0).to(tl.float32)
    if TANH:
        # (1 + tanh(u)) / 2 is sigmoid(2 u), which does not cancel for gates far below zero.
        active = gate / (1.0 + tl.exp(-1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)))
    else:
        active = 0.5 * gate * (1.0 + tl.erf(gate * 0.7071067811865476))
    dtype = out_ptr.dtype.element_ty
    if ROUND:
        active = active.to(dtype).to(tl.float32)
    tl.store(out_ptr + row * half + column, (active * up).to(dtype), mask=mask)


def _guard(x: torch.Tensor, approximate: str = "none", round_activation: bool = True) -> str | None:
    if approximate not in ("none", "tanh"):
        return f"approximate {approximate}"
    if x.stride(-1) != 1:
        return "last axis not contiguous"
    if x.dim() > 2 and not x.is_contiguous():
        return "more than two axes and not contiguous"
    if x.shape[-1] // 2 > BLOCK * _MAX_BLOCKS:
        return f"rows wider than {2 * BLOCK * _MAX_BLOCKS}"
    return None


@kernel(
    "gelu_and_mul",
    requires=Requires(device="cuda", dtypes=("float32", "float16", "bfloat16"), min_sm=(8, 0), modules=("triton",)),
    guard=_guard,
)
def triton_rows(
    x: torch.Tensor, approximate: str = "none", round_activation: bool = True, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """See fk_tasks.gelu.gelu_and_mul. `out`, if given, has its result's shape."""
    half = x.shape[-1] // 2
    target = out
    if target is None or not target.is_contiguous():
        target = torch.empty((*x.shape[:-1], half), dtype=x.dtype, device=x.device)
    if target.numel():
        row_stride = x.stride(0) if x.dim() == 2 else x.shape[-1]
        grid = (target.numel() // half, triton.cdiv(half, BLOCK))
        # Triton launches on the current device, which need not be the tensor's.
        with torch.cuda.device(x.device):
            fk_gelu_and_mul[grid](
                x, target, row_stride, half, TANH=approximate == "tanh", ROUND=round_activation, BLOCK=BLOCK
            )
    if out is not None and target is not out:
        out.copy_(target)
        return out
    return target
