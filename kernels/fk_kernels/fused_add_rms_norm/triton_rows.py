"""fused_add_rms_norm for CUDA in Triton: whole rows in registers, each tensor read once and written once.

A program reads all of its rows before it writes any of them, so writing over the arguments is safe. How many rows it
takes depends on the row's width only: a row's result is the same alone and in any batch.
"""

import torch
import triton
import triton.language as tl

from fk_plugin.kernel import Requires, kernel

# Widest row that fits in the registers of one program (16 warps, 64 float32 values a thread).
MAX_WIDTH = 32768
_ELEMENTS = 1024


@triton.jit
def fk_fused_add_rms_norm(
    x_ptr,
    residual_ptr,
    w_ptr,
    out_ptr,
    sum_ptr,
    rows,
    x_stride,
    residual_stride,
    out_stride,
    sum_stride,
    width,
    counted,
    eps,
    HAS_WEIGHT: tl.constexpr,
    ROUNDING: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    mask = (row < rows) & (column < width)
    x = tl.load(x_ptr + row * x_stride + column, mask=mask, other=0.0).to(tl.float32)
    total = x + tl.load(residual_ptr + row * residual_stride + column, mask=mask, other=0.0).to(tl.float32)
    square = tl.where(column < counted, total * total, 0.0)
    out = total * tl.rsqrt(tl.sum(square, axis=1) / counted + eps)[:, None]
    dtype = x_ptr.dtype.element_ty
    if HAS_WEIGHT:
        w_type = w_ptr.dtype.element_ty
        w = tl.load(w_ptr + column, mask=column < width, other=0.0).to(tl.float32)
        if ROUNDING == "weight":
            out = (out.to(w_type).to(tl.float32) * w).to(w_type).to(tl.float32)
        elif ROUNDING == "once":
            out = out * w
        else:
            out = out.to(dtype).to(tl.float32) * w
    tl.store(sum_ptr + row * sum_stride + column, total.to(dtype), mask=mask)
    tl.store(out_ptr + row * out_stride + column, out.to(dtype), mask=mask)


def _guard(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    variance_size: int | None = None,
    rounding: str = "weight",
) -> str | None:
    if x.shape[-1] > MAX_WIDTH:
        return f"rows wider than {MAX_WIDTH}"
    if residual.dtype != x.dtype or residual.shape != x.shape:
        return "residual unlike x"
    for name, tensor in (("x", x), ("residual", residual)):
        if tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
            return f"last axis of {name} not contiguous"
        if tensor.dim() > 2 and not tensor.is_contiguous():
            return f"{name} has more than two axes and is not contiguous"
    if weight is not None and weight.stride(0) != 1 and weight.shape[0] > 1:
        return "weight not contiguous"
    if rounding not in ("weight", "once", "input"):
        return f"rounding {rounding}"
    if rounding == "input" and weight is not None and torch.promote_types(x.dtype, weight.dtype) != x.dtype:
        return "weight wider than x"
    return None


def _stride(x: torch.Tensor) -> int:
    return x.stride(0) if x.dim() == 2 else x.shape[-1]


@kernel(
    "fused_add_rms_norm",
    requires=Requires(device="cuda", dtypes=("float32", "float16", "bfloat16"), modules=("triton",)),
    guard=_guard,
)
def triton_rows(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    variance_size: int | None = None,
    rounding: str = "weight",
    *,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> None:
    """See fk_tasks.norm.fused_add_rms_norm. Writes into `out` (contiguous) if given, else over x and residual."""
    if not x.numel():
        return
    normed, total = out or (x, residual)
    width = x.shape[-1]
    rows, block = x.numel() // width, triton.next_power_of_2(width)
    tile = max(1, _ELEMENTS // block)
    # Triton launches on the current device, which need not be the tensor's.
    with torch.cuda.device(x.device):
        fk_fused_add_rms_norm[(triton.cdiv(rows, tile),)](
            x,
            residual,
            x if weight is None else weight,
            normed,
            total,
            rows,
            *(_stride(t) for t in (x, residual, normed, total)),
            width,
            variance_size or width,
            eps,
            HAS_WEIGHT=weight is not None,
            ROUNDING=rounding,
            ROWS=tile,
            BLOCK=block,
            num_warps=4 if block <= 2048 else 8 if block <= 8192 else 16,
        )
