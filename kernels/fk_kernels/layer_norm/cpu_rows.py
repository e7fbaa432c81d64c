"""layer_norm for CPU in C: three passes over a row that stays in cache."""

import ctypes
from functools import lru_cache
from pathlib import Path

import torch

from fk_plugin import native
from fk_plugin.kernel import Requires, kernel

_NAMES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}


@lru_cache(maxsize=1)
def _functions():  # type: ignore[no-untyped-def]
    library = native.load(Path(__file__).with_suffix(".c"))
    functions = {(a, b): getattr(library, f"layer_norm_{_NAMES[a]}_{_NAMES[b]}") for a in _NAMES for b in _NAMES}
    for function in functions.values():
        function.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_int64] * 3 + [ctypes.c_float]
        function.restype = None
    return functions


def _prepare() -> None:
    _functions()


def _guard(x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float) -> str | None:
    if x.stride(-1) != 1 and x.shape[-1] > 1:
        return "last axis not contiguous"
    if x.dim() > 2 and not x.is_contiguous():
        return "more than two axes and not contiguous"
    if weight is not None and bias is not None and weight.dtype != bias.dtype:
        return "weight and bias of different dtypes"
    for name, tensor in (("weight", weight), ("bias", bias)):
        if tensor is None:
            continue
        if tensor.dtype not in _NAMES or torch.promote_types(x.dtype, tensor.dtype) != tensor.dtype:
            return f"{name} {str(tensor.dtype).removeprefix('torch.')} beside x {str(x.dtype).removeprefix('torch.')}"
        if tensor.stride(0) != 1 and tensor.shape[0] > 1:
            return f"{name} not contiguous"
    return None


@kernel(
    "layer_norm",
    requires=Requires(device="cpu", dtypes=("float32", "float16", "bfloat16")),
    guard=_guard,
    prepare=_prepare,
)
def cpu_rows(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """See fk_tasks.layer_norm.layer_norm. `out`, if given, has x's shape."""
    target = out if out is not None and out.is_contiguous() else torch.empty(x.shape, dtype=x.dtype)
    if x.numel():
        holder = weight if weight is not None else bias
        width = x.shape[-1]
        _functions()[x.dtype, x.dtype if holder is None else holder.dtype](
            x.data_ptr(),
            None if weight is None else weight.data_ptr(),
            None if bias is None else bias.data_ptr(),
            target.data_ptr(),
            x.numel() // width,
            x.stride(0) if x.dim() == 2 else width,
            width,
            eps,
        )
    if out is not None and target is not out:
        out.copy_(target)
        return out
    return target
