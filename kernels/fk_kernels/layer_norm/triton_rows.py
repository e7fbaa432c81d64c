"""layer_norm for CUDA in Triton: whole rows in registers, read once; the variance from differences to the mean.

How many rows one program takes depends on the row's width only, never on how many rows there are: a row's result is
the same alone and in any batch.
"""

import torch
import triton
import triton.language as tl

from fk_plugin.kernel import Requires, kernel

# Widest row that fits in the registers of one program (16 warps, 64 float32 values a thread).
MAX_WIDTH = 32768
_ELEMENTS = 1024  # per program at least, so that 128-wide rows do not leave most of it idle


@triton.jit
def fk_layer_norm(
    x_ptr,
    w_ptr,
    b_ptr,
    out_ptr,
    rows,
    row_stride,
    width,
    eps,
    HAS_WEIGHT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    inside = column < width
    mask = (row < rows)[:, None] & inside[None, :]
    x = tl.load(x_ptr + row[:, None] * row_stride + column[None, :], mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(x, axis=1) / width
    off = tl.where(mask, x - mean[:, None], 0.0)
    # What rounding took from the mean, times 1 / sqrt(eps), would be the result of a row without variance.
    off = tl.where(mask, off - (tl.sum(off, axis=1) / width)[:, None], 0.0)
    out = off * tl.rsqrt(tl.sum(off * off, axis=1) / width + eps)[:, None]
    if HAS_WEIGHT:
        out = out * tl.load(w_ptr + column, mask=inside, other=0.0).to(tl.float32)[None, :]
    if HAS_BIAS:
        out = out + tl.load(b_ptr + column, mask=inside, other=0.0).to(tl.float32)[None, :]
    tl.store(out_ptr + row[:, None] * width + column[None, :], out.to(out_ptr.dtype.element_ty), mask=mask)


def _guard(x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float) -> str | None:
    if x.shape[-1] > MAX_WIDTH:
        return f"rows wider than {MAX_WIDTH}"
    if x.stride(-1) != 1 and x.shape[-1] > 1:
        return "last axis not contiguous"
    if x.dim() > 2 and not x.is_contiguous():
        return "more than two axes and not contiguous"
    for name, tensor in (("weight", weight), ("bias", bias)):
        if tensor is None:
            continue
        if torch.promote_types(x.dtype, tensor.dtype) != tensor.dtype:
            return f"{name} {str(tensor.dtype).removeprefix('torch.')} beside x {str(x.dtype).removeprefix('torch.')}"
        if tensor.stride(0) != 1 and tensor.shape[0] > 1:
            return f"{name} not contiguous"
    return None


@kernel(
    "layer_norm",
    requires=Requires(device="cuda", dtypes=("float32", "float16", "bfloat16"), min_sm=(8, 0), modules=("triton",)),
    guard=_guard,
)
def triton_rows(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """See fk_tasks.layer_norm.layer_norm. `out`, if given, has x's shape."""
    target = out
    if target is None or not target.is_contiguous():
        target = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel():
        width = x.shape[-1]
        rows, block = x.numel() // width, triton.next_power_of_2(width)
        tile = max(1, _ELEMENTS // block)
        # Triton launches on the current device, which need not be the tensor's.
        with torch.cuda.device(x.device):
            fk_layer_norm[(triton.cdiv(rows, tile),)](
                x,
                x if weight is None else weight,
                x if bias is None else bias,
                target,
                rows,
                x.stride(0) if x.dim() == 2 else width,
                width,
                eps,
                HAS_WEIGHT=weight is not None,
                HAS_BIAS=bias is not None,
                ROWS=tile,
                BLOCK=block,
                num_warps=4 if block <= 2048 else 8 if block <= 8192 else 16,
            )
    if out is not None and target is not out:
        out.copy_(target)
        return out
    return target
