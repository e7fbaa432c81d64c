"""grouped_gemm for CUDA in Triton: one program per tile of one expert's rows and BLOCK_N output columns.

How many rows an expert has is known on the device only. So the grid is the most tiles there can be, every program finds
its expert from the offsets, and those beyond the last tile leave. Rows that belong to nobody are one more "expert",
whose tiles are zeros. Tile sizes are constants: a row's result does not depend on the rows beside it.
"""

import torch
import triton
import triton.language as tl

from fk_plugin.kernel import Requires, kernel

BLOCK_M, BLOCK_N, BLOCK_K = 64, 128, 64
_MAX_EXPERTS = 1024  # their offsets are scanned by every program


@triton.jit
def fk_grouped_gemm(
    x_ptr,
    weight_ptr,
    offset_ptr,
    out_ptr,
    rows,
    experts,
    n,
    k,
    x_row,
    weight_expert,
    weight_row,
    PRECISION: tl.constexpr,
    EXPERTS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    tile = tl.program_id(0)
    slot = tl.arange(0, EXPERTS)
    ends = tl.load(offset_ptr + slot, mask=slot < experts, other=0)
    starts = tl.load(offset_ptr + slot - 1, mask=(slot > 0) & (slot <= experts), other=0)
    ends = tl.where(slot == experts, rows, ends)  # the rows of nobody
    sizes = tl.where(slot <= experts, ends - starts, 0)
    tiles = (sizes + BLOCK_M - 1) // BLOCK_M
    last = tl.cumsum(tiles, axis=0)
    expert = tl.sum((last <= tile).to(tl.int32), axis=0)
    if expert <= experts:
        mine = slot == expert
        first = tl.sum(tl.where(mine, starts + (tile - (last - tiles)) * BLOCK_M, 0), axis=0)
        end = tl.sum(tl.where(mine, ends, 0), axis=0)
        row = (first + tl.arange(0, BLOCK_M)).to(tl.int64)
        column = (tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
        x_at = x_ptr + row[:, None] * x_row
        w_at = weight_ptr + expert.to(tl.int64) * weight_expert + column[None, :] * weight_row
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        steps = tl.where(expert < experts, tl.cdiv(k, BLOCK_K), 0)
        for step in range(0, steps):
            depth = step * BLOCK_K + tl.arange(0, BLOCK_K)
            x = tl.load(x_at + depth[None, :], mask=(row < end)[:, None] & (depth < k)[None, :], other=0.0)
            w = tl.load(w_at + depth[:, None], mask=(column < n)[None, :] & (depth < k)[:, None], other=0.0)
            acc = tl.dot(x, w, acc, input_precision=PRECISION)
        mask = (row < end)[:, None] & (column < n)[None, :]
        tl.store(out_ptr + row[:, None] * n + column[None, :], acc.to(out_ptr.dtype.element_ty), mask=mask)


def _guard(x: torch.Tensor, weight: torch.Tensor, offsets: torch.Tensor) -> str | None:
    if weight.dtype != x.dtype:
        return "weight of another dtype than x"
    if x.stride(-1) != 1 and x.shape[-1] > 1:
        return "last axis of x not contiguous"
    if weight.stride(-1) != 1 and weight.shape[-1] > 1:
        return "last axis of weight not contiguous"
    if weight.shape[0] > _MAX_EXPERTS:
        return f"more than {_MAX_EXPERTS} experts"
    if offsets.dtype != torch.int32 or (offsets.stride(0) != 1 and offsets.shape[0] > 1):
        return "offsets not contiguous int32"
    if weight.shape[1] > BLOCK_N * 65535:
        return "output too wide"  # grid axis 1
    return None


@kernel(
    "grouped_gemm",
    requires=Requires(device="cuda", dtypes=("float32", "float16", "bfloat16"), modules=("triton",)),
    guard=_guard,
)
def triton_tiles(x: torch.Tensor, weight: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """See fk_tasks.moe.grouped_gemm."""
    rows, width = x.shape
    experts, n, _ = weight.shape
    out = torch.empty((rows, n), dtype=x.dtype, device=x.device)
    if out.numel() == 0:
        return out
    # Every expert, and the rows of nobody, may leave one tile partly filled.
    most = triton.cdiv(rows, BLOCK_M) + min(experts + 1, rows)
    # Triton launches on the current device, which need not be the tensor's.
    with torch.cuda.device(x.device):
        fk_grouped_gemm[(most, triton.cdiv(n, BLOCK_N))](
            x,
            weight,
            offsets,
            out,
            rows,
            experts,
            n,
            width,
            x.stride(0),
            weight.stride(0),
            weight.stride(1),
            # TF32 would keep 10 bits of a float32 product's factors.
            PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
            EXPERTS=triton.next_power_of_2(experts + 1),
            BLOCK_M=BLOCK_M,
            BLOCK_N=BLOCK_N,
            BLOCK_K=BLOCK_K,
            num_warps=4,
            num_stages=3,
        )
    return out
