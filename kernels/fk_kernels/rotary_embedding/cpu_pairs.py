"""rotary_embedding for CPU in C: in place, one pass, where PyTorch's operators go to memory nine times."""

import ctypes
from functools import lru_cache
from pathlib import Path

import torch

from fk_plugin import native
from fk_plugin.kernel import Requires, kernel

_NAMES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
MAX_ROTARY = 512  # twice the C file's MAX_HALF


class _Heads(ctypes.Structure):
    """Where a token's heads lie, strides in elements. The C file's struct heads."""

    _fields_ = [("x", ctypes.c_void_p), *((name, ctypes.c_int64) for name in ("token", "head", "count"))]


@lru_cache(maxsize=1)
def _functions():  # type: ignore[no-untyped-def]
    library = native.load(Path(__file__).with_suffix(".c"))
    pairs = [(x, table) for x in _NAMES for table in {x, torch.float32}]
    functions = {(x, c): getattr(library, f"rotary_embedding_{_NAMES[x]}_{_NAMES[c]}") for x, c in pairs}
    for function in functions.values():
        heads, sizes = [ctypes.POINTER(_Heads)] * 2, [ctypes.c_int64] * 4
        function.argtypes = [*heads, *[ctypes.c_void_p] * 2, *sizes, *[ctypes.c_int] * 2]
        function.restype = None
    return functions


def _prepare() -> None:
    _functions()


def _guard(
    query: torch.Tensor,
    key: torch.Tensor,
    positions: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    head_size: int,
    is_neox: bool = True,
    round_products: bool = True,
) -> str | None:
    for name, tensor in (("query", query), ("key", key)):
        if tensor.dtype != query.dtype:
            return f"{name} of another dtype than query"
        if tensor.dim() not in (2, 3):
            return f"{name} with {tensor.dim()} axes"
        if tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
            return f"last axis of {name} not contiguous"
    if positions.dim() != 1:
        return f"positions with {positions.dim()} axes"
    if cos_sin_cache.dtype not in (query.dtype, torch.float32):
        return "table of another dtype than query or float32"
    if cos_sin_cache.stride(-1) != 1:
        return "last axis of the table not contiguous"
    return f"more than {MAX_ROTARY} rotated dimensions" if cos_sin_cache.shape[-1] > MAX_ROTARY else None


def _heads(x: torch.Tensor, head_size: int) -> _Heads:
    if x.dim() == 3:
        return _Heads(x.data_ptr(), x.stride(0), x.stride(1), x.shape[1])
    return _Heads(x.data_ptr(), x.stride(0), head_size, x.shape[1] // head_size)


@kernel(
    "rotary_embedding",
    requires=Requires(device="cpu", dtypes=("float32", "float16", "bfloat16")),
    guard=_guard,
    prepare=_prepare,
)
def cpu_pairs(
    query: torch.Tensor,
    key: torch.Tensor,
    positions: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    head_size: int,
    is_neox: bool = True,
    round_products: bool = True,
) -> None:
    """See fk_tasks.rotary.rotary_embedding."""
    where = positions.to(torch.int64).contiguous()
    _functions()[query.dtype, cos_sin_cache.dtype](
        _heads(query, head_size),
        _heads(key, head_size),
        where.data_ptr(),
        cos_sin_cache.data_ptr(),
        cos_sin_cache.stride(0),
        cos_sin_cache.shape[0],
        where.shape[0],
        cos_sin_cache.shape[1] // 2,
        int(is_neox),
        int(round_products),
    )
