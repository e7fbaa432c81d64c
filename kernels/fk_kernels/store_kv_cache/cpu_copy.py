"""store_kv_cache for CPU in C: plain copies, tokens shared out over torch's OpenMP threads."""

import ctypes
from functools import lru_cache
from pathlib import Path

import torch

from fk_plugin import native
from fk_plugin.kernel import Requires, kernel


class _Place(ctypes.Structure):
    """Where a cache and the rows for it lie; strides in bytes. The C file's struct place."""

    _fields_ = [
        ("cache", ctypes.c_void_p),
        ("rows", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("row", "row_head", "block", "in_block", "cache_head")),
    ]


@lru_cache(maxsize=1)
def _functions():  # type: ignore[no-untyped-def]
    library = native.load(Path(__file__).with_suffix(".c"))
    functions = {torch.int64: library.store_kv_cache_i64, torch.int32: library.store_kv_cache_i32}
    for function in functions.values():
        function.argtypes = [ctypes.POINTER(_Place)] * 2 + [ctypes.c_void_p] + [ctypes.c_int64] * 5
        function.restype = None
    return functions


def _prepare() -> None:
    _functions()


def _guard(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> str | None:
    for name, tensor in (("key", key), ("value", value), ("key_cache", key_cache), ("value_cache", value_cache)):
        if tensor.dtype != key.dtype:
            return f"{name} of another dtype than key"
        if tensor.shape[-2:] != key.shape[-2:]:
            return f"{name} of another head shape than key"
        if tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
            return f"last axis of {name} not contiguous"
    if slot_mapping.dtype not in (torch.int64, torch.int32):
        return f"slot_mapping {str(slot_mapping.dtype).removeprefix('torch.')}"
    if slot_mapping.stride(0) != 1 and slot_mapping.shape[0] > 1:
        return "slot_mapping not contiguous"
    return None


def _place(rows: torch.Tensor, cache: torch.Tensor) -> _Place:
    blocks = cache.unsqueeze(1) if cache.dim() == 3 else cache
    strides = (rows.stride(0), rows.stride(1), blocks.stride(0), blocks.stride(1), blocks.stride(2))
    return _Place(cache.data_ptr(), rows.data_ptr(), *(s * cache.element_size() for s in strides))


@kernel(
    "store_kv_cache",
    requires=Requires(device="cpu", dtypes=("float32", "float16", "bfloat16")),
    guard=_guard,
    prepare=_prepare,
)
def cpu_copy(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """See fk_tasks.cache.store_kv_cache."""
    page = 1 if key_cache.dim() == 3 else key_cache.shape[1]
    _functions()[slot_mapping.dtype](
        _place(key, key_cache),
        _place(value, value_cache),
        slot_mapping.data_ptr(),
        slot_mapping.shape[0],
        key_cache.shape[0] * page,
        page,
        key.shape[1],
        key.shape[2] * key.element_size(),
    )
