"""rope_kv_write for CPU in C: each token's query, key and value pass through the processor's cache once."""

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


class _Slots(ctypes.Structure):
    """Where a cache's slots lie, strides in elements. The C file's struct slots."""

    _fields_ = [("x", ctypes.c_void_p), *((name, ctypes.c_int64) for name in ("block", "place", "head"))]


class _Sizes(ctypes.Structure):
    """The C file's struct sizes."""

    _fields_ = [
        *((n, ctypes.c_int64) for n in ("tokens", "limit", "table_row", "half", "size", "capacity", "page")),
        *((n, ctypes.c_int32) for n in ("neox", "rounds")),
    ]


@lru_cache(maxsize=1)
def _functions():  # type: ignore[no-untyped-def]
    library = native.load(Path(__file__).with_suffix(".c"))
    pairs = [(x, table) for x in _NAMES for table in {x, torch.float32}]
    functions = {(x, c): getattr(library, f"rope_kv_write_{_NAMES[x]}_{_NAMES[c]}") for x, c in pairs}
    for function in functions.values():
        addresses = [ctypes.c_void_p] * 3
        function.argtypes = [ctypes.POINTER(_Heads), ctypes.POINTER(_Slots), *addresses, ctypes.POINTER(_Sizes)]
        function.restype = None
    return functions


def _prepare() -> None:
    _functions()


def _guard(*args: object) -> str | None:
    tensors = dict(
        zip(("query", "key", "value", "query_out", "key_out", "key_cache", "value_cache"), args, strict=False)
    )
    query, (positions, table, slots) = tensors["query"], args[7:10]
    for name, tensor in tensors.items():
        if tensor.dtype != query.dtype:
            return f"{name} of another dtype than query"
        if tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
            return f"last axis of {name} not contiguous"
        if not name.endswith("cache") and tensor.dim() not in (2, 3):
            return f"{name} with {tensor.dim()} axes"
    if positions.dim() != 1 or slots.dim() != 1:
        return "positions or slot_mapping with more than one axis"
    if table.dtype not in (query.dtype, torch.float32):
        return "table of another dtype than query or float32"
    if table.stride(-1) != 1:
        return "last axis of the table not contiguous"
    return f"more than {MAX_ROTARY} rotated dimensions" if table.shape[-1] > MAX_ROTARY else None


def _heads(x: torch.Tensor, head_size: int) -> _Heads:
    if x.dim() == 3:
        return _Heads(x.data_ptr(), x.stride(0), x.stride(1), x.shape[1])
    return _Heads(x.data_ptr(), x.stride(0), head_size, x.shape[1] // head_size)


def _slots(cache: torch.Tensor) -> _Slots:
    blocks = cache.unsqueeze(1) if cache.dim() == 3 else cache
    return _Slots(cache.data_ptr(), blocks.stride(0), blocks.stride(1), blocks.stride(2))


@kernel(
    "rope_kv_write",
    requires=Requires(device="cpu", dtypes=("float32", "float16", "bfloat16")),
    guard=_guard,
    prepare=_prepare,
)
def cpu_tokens(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_out: torch.Tensor,
    key_out: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    positions: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    head_size: int,
    is_neox: bool = True,
    round_products: bool = True,
) -> None:
    """See fk_tasks.rope_kv.rope_kv_write."""
    where, slots = (t.to(torch.int64).contiguous() for t in (positions, slot_mapping))
    page = 1 if key_cache.dim() == 3 else key_cache.shape[1]
    heads = [_heads(x, head_size) for x in (query, key, value, query_out, key_out)]
    table = (cos_sin_cache.shape[0], cos_sin_cache.stride(0), cos_sin_cache.shape[1] // 2)
    variant = (int(is_neox), int(round_products))
    _functions()[query.dtype, cos_sin_cache.dtype](
        (_Heads * 5)(*heads),
        (_Slots * 2)(_slots(key_cache), _slots(value_cache)),
        where.data_ptr(),
        slots.data_ptr(),
        cos_sin_cache.data_ptr(),
        _Sizes(slots.shape[0], *table, head_size, key_cache.shape[0] * page, page, *variant),
    )
