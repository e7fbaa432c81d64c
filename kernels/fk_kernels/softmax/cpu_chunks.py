"""softmax for CPU in C: chunks of a row run in parallel, where one row alone would keep the other threads waiting."""

import ctypes
from functools import lru_cache
from pathlib import Path

import torch

from fk_plugin import native
from fk_plugin.kernel import Requires, kernel

_NAMES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
CHUNK = 8192  # the C file's


@lru_cache(maxsize=1)
def _functions():  # type: ignore[no-untyped-def]
    library = native.load(Path(__file__).with_suffix(".c"))
    functions = {(a, b): getattr(library, f"softmax_{_NAMES[a]}_{_NAMES[b]}") for a in _NAMES for b in _NAMES}
    for function in functions.values():
        function.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * 3
        function.restype = None
    return functions


def _prepare() -> None:
    _functions()


def _guard(x: torch.Tensor, dtype: torch.dtype | None = None) -> str | None:
    if x.stride(-1) != 1 and x.shape[-1] > 1:
        return "last axis not contiguous"
    if x.dim() > 2 and not x.is_contiguous():
        return "more than two axes and not contiguous"
    if dtype is not None and dtype not in _NAMES:
        return f"result {str(dtype).removeprefix('torch.')}"
    return None


@kernel(
    "softmax",
    requires=Requires(device="cpu", dtypes=("float32", "float16", "bfloat16")),
    guard=_guard,
    prepare=_prepare,
)
def cpu_chunks(x: torch.Tensor, dtype: torch.dtype | None = None, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """See fk_tasks.softmax.softmax. `out`, if given, has x's shape and the result's dtype."""
    target = out if out is not None and out.is_contiguous() else torch.empty(x.shape, dtype=dtype or x.dtype)
    if x.numel():
        width = x.shape[-1]
        rows = x.numel() // width
        partial = torch.empty(2 * rows * -(-width // CHUNK), dtype=torch.float32)
        row_stride = x.stride(0) if x.dim() == 2 else width
        run = _functions()[x.dtype, target.dtype]
        run(x.data_ptr(), target.data_ptr(), partial.data_ptr(), rows, row_stride, width)
    if out is not None and target is not out:
        out.copy_(target)
        return out
    return target
