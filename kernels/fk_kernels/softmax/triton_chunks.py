"""softmax for CUDA in Triton: a row is cut into chunks, so that one row of 128,256 logits still fills the GPU.

First launch: maximum and sum of exp per chunk. Second launch: every chunk combines its row's partial results, always in
the same order, and writes its part. The chunk depends on nothing but the constant below, so a row's result is the same
alone and in any batch. The second read of the logits comes from L2 where they fit (96 rows of 128,256 in 50 MB).
"""

import torch
import triton
import triton.language as tl

from fk_plugin.kernel import Requires, kernel

CHUNK = 4096
# Grid axis 1 counts chunks and may not pass 65,535; the partial results of a row must fit in registers long before.
MAX_WIDTH = CHUNK * 4096


@triton.jit
def fk_softmax_partial(x_ptr, max_ptr, sum_ptr, row_stride, column_stride, width, chunks, CHUNK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    column = chunk * CHUNK + tl.arange(0, CHUNK)
    at = x_ptr + row * row_stride + column.to(tl.int64) * column_stride
    x = tl.load(at, mask=column < width, other=float("-inf")).to(tl.float32)
    top = tl.max(x, axis=0)
    # A chunk of minus infinities must add 0 to a row that has finite values elsewhere, not NaN.
    total = tl.sum(tl.exp(x - tl.where(top == float("-inf"), 0.0, top)), axis=0)
    tl.store(max_ptr + row * chunks + chunk, top)
    tl.store(sum_ptr + row * chunks + chunk, total)


@triton.jit
def fk_softmax_normalise(
    x_ptr,
    max_ptr,
    sum_ptr,
    out_ptr,
    row_stride,
    column_stride,
    width,
    chunks,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, CHUNKS)
    tops = tl.load(max_ptr + row * chunks + part, mask=part < chunks, other=float("-inf"))
    sums = tl.load(sum_ptr + row * chunks + part, mask=part < chunks, other=0.0)
    top = tl.max(tops, axis=0)
    # exp(-inf - -inf) is NaN for padding parts of an all-masked row, which is NaN anyway.
    total = tl.sum(sums * tl.exp(tops - top), axis=0)
    column = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    at = x_ptr + row * row_stride + column.to(tl.int64) * column_stride
    x = tl.load(at, mask=column < width, other=float("-inf")).to(tl.float32)
    out = tl.exp(x - top) / total
    tl.store(out_ptr + row * width + column, out.to(out_ptr.dtype.element_ty), mask=column < width)


def _guard(x: torch.Tensor, dtype: torch.dtype | None = None) -> str | None:
    if x.shape[-1] > MAX_WIDTH:
        return f"rows wider than {MAX_WIDTH}"
    if x.dim() > 2 and not x.is_contiguous():
        return "more than two axes and not contiguous"
    if dtype not in (None, torch.float32, torch.float16, torch.bfloat16):
        return f"result {str(dtype).removeprefix('torch.')}"
    return None


@kernel(
    "softmax",
    requires=Requires(device="cuda", dtypes=("float32", "float16", "bfloat16"), modules=("triton",)),
    guard=_guard,
)
def triton_chunks(
    x: torch.Tensor, dtype: torch.dtype | None = None, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """See fk_tasks.softmax.softmax. `out`, if given, has x's shape."""
    target = out
    if target is None or not target.is_contiguous():
        target = torch.empty(x.shape, dtype=dtype or x.dtype, device=x.device)
    if x.numel():
        width = x.shape[-1]
        rows, chunks = x.numel() // width, triton.cdiv(width, CHUNK)
        tops, sums = torch.empty((2, rows, chunks), dtype=torch.float32, device=x.device)
        strides = (x.stride(0) if x.dim() == 2 else width), x.stride(-1)
        # Triton launches on the current device, which need not be the tensor's.
        with torch.cuda.device(x.device):
            fk_softmax_partial[(rows, chunks)](x, tops, sums, *strides, width, chunks, CHUNK=CHUNK, num_warps=8)
            fk_softmax_normalise[(rows, chunks)](
                x,
                tops,
                sums,
                target,
                *strides,
                width,
                chunks,
                CHUNK=CHUNK,
                CHUNKS=triton.next_power_of_2(chunks),
                num_warps=8,
            )
    if out is not None and target is not out:
        out.copy_(target)
        return out
    return target
