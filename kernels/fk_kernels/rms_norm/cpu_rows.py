"""rms_norm for CPU in C: two passes over a row that stays in cache, where PyTorch's six operators each go to memory."""

import ctypes
from functools import lru_cache
from pathlib import Path

import torch

from fk_plugin import native
from fk_plugin.kernel import Requires, kernel

_NAMES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
_ROUNDINGS = {"weight": 0, "once": 1, "input": 2}


@lru_cache(maxsize=1)
def _functions():  # type: ignore[no-untyped-def]
    library = native.load(Path(__file__).with_suffix(".c"))
    functions = {(a, b): getattr(library, f"rms_norm_{_NAMES[a]}_{_NAMES[b]}") for a in _NAMES for b in _NAMES}
    for function in functions.values():
        function.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * 6 + [ctypes.c_float, ctypes.c_int]
        function.restype = None
    return functions


def _prepare() -> None:
    _functions()


def _guard(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    variance_size: int | None = None,
    rounding: str = "weight",
) -> str | None:
    if x.stride(-1) != 1 and x.shape[-1] > 1:
        return "last axis not contiguous"
    if x.dim() > 3 and not x.is_contiguous():
        return "more than three axes and not contiguous"
    if rounding not in _ROUNDINGS:
        return f"rounding {rounding}"
    if weight is None:
        return None
    if weight.dtype not in _NAMES:
        return f"weight dtype {str(weight.dtype).removeprefix('torch.')}"
    if weight.stride(0) != 1 and weight.shape[0] > 1:
        return "weight not contiguous"
    if rounding == "input" and torch.promote_types(x.dtype, weight.dtype) != x.dtype:
        return "weight wider than x"
    return None


@kernel(
    "rms_norm",
    requires=Requires(device="cpu", dtypes=("float32", "float16", "bfloat16")),
    guard=_guard,
    prepare=_prepare,
)
def cpu_rows(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    variance_size: int | None = None,
    rounding: str = "weight",
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """See fk_tasks.norm.rms_norm. `out`, if given, has x's shape and dtype."""
    target = out if out is not None and out.is_contiguous() else torch.empty(x.shape, dtype=x.dtype)
    if x.numel():
        width = x.shape[-1]
        inner, outer_stride, inner_stride = 1, x.stride(0) if x.dim() == 2 else width, 0
        if x.dim() == 3:
            inner, outer_stride, inner_stride = x.shape[1], x.stride(0), x.stride(1)
        _functions()[x.dtype, x.dtype if weight is None else weight.dtype](
            x.data_ptr(),
            None if weight is None else weight.data_ptr(),
            target.data_ptr(),
            x.numel() // width,
            inner,
            outer_stride,
            inner_stride,
            width,
            variance_size or width,
            eps,
            _ROUNDINGS[rounding],
        )
    if out is not None and target is not out:
        out.copy_(target)
        return out
    return target
