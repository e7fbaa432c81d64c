"""gelu_and_mul for CPU in C: one pass over the data, where PyTorch's two operators write and re-read the activation."""

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
    functions = {dtype: getattr(library, f"gelu_and_mul_{name}") for dtype, name in _NAMES.items()}
    for function in functions.values():
        function.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_int64] * 3 + [ctypes.c_int] * 2
        function.restype = None
    return functions


def _prepare() -> None:
    _functions()


def _guard(x: torch.Tensor, approximate: str = "none", round_activation: bool = True) -> str | None:
    if approximate not in ("none", "tanh"):
        return f"approximate {approximate}"
    if x.stride(-1) != 1:
        return "last axis not contiguous"
    if x.dim() > 2 and not x.is_contiguous():
        return "more than two axes and not contiguous"
    return None


@kernel(
    "gelu_and_mul",
    requires=Requires(device="cpu", dtypes=("float32", "float16", "bfloat16")),
    guard=_guard,
    prepare=_prepare,
)
def cpu_fused(
    x: torch.Tensor, approximate: str = "none", round_activation: bool = True, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """See fk_tasks.gelu.gelu_and_mul. `out`, if given, has its result's shape."""
    half = x.shape[-1] // 2
    target = out if out is not None and out.is_contiguous() else torch.empty((*x.shape[:-1], half), dtype=x.dtype)
    if target.numel():
        stride = x.stride(0) if x.dim() == 2 else x.shape[-1]
        rows = target.numel() // half
        run = _functions()[x.dtype]
        run(x.data_ptr(), target.data_ptr(), rows, half, stride, int(approximate == "tanh"), int(round_activation))
    if out is not None and target is not out:
        out.copy_(target)
        return out
    return target
