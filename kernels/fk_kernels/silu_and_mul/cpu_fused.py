"""silu_and_mul for CPU in C: one pass over the data, where PyTorch's two operators write and re-read the activation."""

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
    functions = {dtype: getattr(library, f"silu_and_mul_{name}") for dtype, name in _NAMES.items()}
    for function in functions.values():
        function.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_int64] * 3 + [ctypes.c_int]
        function.restype = None
    return functions


def _prepare() -> None:
    _functions()


def _guard(x: torch.Tensor, round_activation: bool = True) -> str | None:
    if x.stride(-1) != 1:
        return "last axis not contiguous"
    if x.dim() > 2 and not x.is_contiguous():
        return "more than two axes and not contiguous"
    return None


@kernel(
    "silu_and_mul",
    requires=Requires(device="cpu", dtypes=("float32", "float16", "bfloat16")),
    guard=_guard,
    prepare=_prepare,
)
def cpu_fused(x: torch.Tensor, round_activation: bool = True, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """See fk_tasks.activation.silu_and_mul. `out`, if given, is contiguous [..., D]."""
    half = x.shape[-1] // 2
    if out is None:
        out = torch.empty((*x.shape[:-1], half), dtype=x.dtype)
    if out.numel() == 0:
        return out
    rows = out.numel() // half
    stride = x.stride(-2) if x.dim() > 1 else 0
    _functions()[x.dtype](x.data_ptr(), out.data_ptr(), rows, half, stride, int(round_activation))
    return out
