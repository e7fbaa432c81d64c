"""fused_add_rms_norm for CPU in C: two passes over rows that stay in cache, in place or into new tensors."""

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
    names = {(a, b): f"fused_add_rms_norm_{_NAMES[a]}_{_NAMES[b]}" for a in _NAMES for b in _NAMES}
    functions = {key: getattr(library, name) for key, name in names.items()}
    for function in functions.values():
        function.argtypes = [ctypes.c_void_p] * 5 + [ctypes.c_int64] * 7 + [ctypes.c_float, ctypes.c_int]
        function.restype = None
    return functions


def _prepare() -> None:
    _functions()


def _guard(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    variance_size: int | None = None,
    rounding: str = "weight",
) -> str | None:
    if residual.dtype != x.dtype or residual.shape != x.shape:
        return "residual unlike x"
    for name, tensor in (("x", x), ("residual", residual)):
        if tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
            return f"last axis of {name} not contiguous"
        if tensor.dim() > 2 and not tensor.is_contiguous():
            return f"{name} has more than two axes and is not contiguous"
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


def _stride(x: torch.Tensor) -> int:
    return x.stride(0) if x.dim() == 2 else x.shape[-1]


@kernel(
    "fused_add_rms_norm",
    requires=Requires(device="cpu", dtypes=("float32", "float16", "bfloat16")),
    guard=_guard,
    prepare=_prepare,
)
def cpu_rows(
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
    _functions()[x.dtype, x.dtype if weight is None else weight.dtype](
        x.data_ptr(),
        residual.data_ptr(),
        None if weight is None else weight.data_ptr(),
        normed.data_ptr(),
        total.data_ptr(),
        x.numel() // width,
        *(_stride(t) for t in (x, residual, normed, total)),
        width,
        variance_size or width,
        eps,
        _ROUNDINGS[rounding],
    )
