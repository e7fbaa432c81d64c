"""rms_norm for CUDA in Triton: whole rows in registers, read once.

How many rows one program takes depends on the row's width only, never on how many rows there are: a row's result is
the same alone and in any batch.
"""

import torch
import triton
import triton.language as tl

from fk_plugin.kernel import Requires, kernel

# Widest row that fits in the registers of one program (16 warps, 64 float32 values a thread).
MAX_WIDTH = 32768
_ELEMENTS = 1024  # per program at least, so that 128-wide q and k heads do not leave most of it idle


@triton.jit
def fk_rms_norm(
    x_ptr,
    w_ptr,
    out_ptr,
    rows,
    inner,
    x_outer,
    x_inner,
    width,
    counted,
    eps,
    HAS_WEIGHT: tl.constexpr,
    ROUNDING: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    mask = (row < rows)[:, None] & (column < width)[None, :]
    start = (row // inner) * x_outer + (row % inner) * x_inner
    x = tl.load(x_ptr + start[:, None] + column[None, :], mask=mask, other=0.0).to(tl.float32)
    square = tl.where((column < counted)[None, :], x * x, 0.0)
    out = x * tl.rsqrt(tl.sum(square, axis=1) / counted + eps)[:, None]
    dtype = x_ptr.dtype.element_ty
    if HAS_WEIGHT:
        w_type = w_ptr.dtype.element_ty
        w = tl.load(w_ptr + column, mask=column < width, other=0.0).to(tl.float32)[None, :]
        if ROUNDING == "weight":
            out = (out.to(w_type).to(tl.float32) * w).to(w_type).to(tl.float32)
        elif ROUNDING == "once":
            out = out * w
        else:
            out = out.to(dtype).to(tl.float32) * w
    at = row[:, None] * width + column[None, :]
    tl.store(out_ptr + at, out.to(out_ptr.dtype.element_ty), mask=mask)


def _guard(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    variance_size: int | None = None,
    rounding: str = "weight",
) -> str | None:
    if x.shape[-1] > MAX_WIDTH:
        return f"rows wider than {MAX_WIDTH}"
    if x.stride(-1) != 1 and x.shape[-1] > 1:
        return "last axis not contiguous"
    if x.dim() > 3 and not x.is_contiguous():
        return "more than three axes and not contiguous"
    if weight is not None and weight.stride(0) != 1 and weight.shape[0] > 1:
        return "weight not contiguous"
    if rounding not in ("weight", "once", "input"):
        return f"rounding {rounding}"
    return None


def _row_strides(x: torch.Tensor) -> tuple[int, int, int]:
    """(rows per outer step, outer stride, inner stride) of the rows of x, in elements."""
    if x.dim() == 3:
        return x.shape[1], x.stride(0), x.stride(1)
    return 1, (x.stride(0) if x.dim() == 2 else x.shape[-1]), 0


@kernel(
    "rms_norm",
    requires=Requires(device="cuda", dtypes=("float32", "float16", "bfloat16"), modules=("triton",)),
    guard=_guard,
)
def triton_rows(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    variance_size: int | None = None,
    rounding: str = "weight",
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """See fk_tasks.norm.rms_norm. `out`, if given, has x's shape."""
    dtype = x.dtype if weight is None or rounding != "input" else torch.promote_types(x.dtype, weight.dtype)
    target = out
    if target is None or not target.is_contiguous():
        target = torch.empty(x.shape, dtype=dtype, device=x.device)
    if x.numel():
        width = x.shape[-1]
        rows, block = x.numel() // width, triton.next_power_of_2(width)
        tile = max(1, _ELEMENTS // block)
        # Triton launches on the current device, which need not be the tensor's.
        with torch.cuda.device(x.device):
            fk_rms_norm[(triton.cdiv(rows, tile),)](
                x,
                x if weight is None else weight,
                target,
                rows,
                *_row_strides(x),
                width,
                variance_size or width,
                eps,
                HAS_WEIGHT=weight is not None,
                ROUNDING=rounding,
                ROWS=tile,
                BLOCK=block,
                num_warps=4 if block <= 2048 else 8 if block <= 8192 else 16,
            )
    if out is not None and target is not out:
        out.copy_(target)
        return out
    return target
