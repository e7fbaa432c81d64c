"""store_kv_cache for CUDA in Triton: one program for BLOCK elements of one token's key and value."""

import torch
import triton
import triton.language as tl

from fk_plugin.kernel import Requires, kernel

BLOCK = 1024
_MAX_TILES = 65535  # grid axis 1


@triton.jit
def fk_store_kv_cache(
    key_ptr,
    value_ptr,
    key_cache_ptr,
    value_cache_ptr,
    slot_ptr,
    slots,
    page,
    width,
    HEAD_SIZE: tl.constexpr,
    key_token,
    key_head,
    value_token,
    value_head,
    key_block,
    key_place,
    key_cache_head,
    value_block,
    value_place,
    value_cache_head,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_ptr + token).to(tl.int64)
    # Negative: padding. Past the end: the caller's error, which a kernel can only refuse to make worse.
    if (slot >= 0) & (slot < slots):
        element = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        mask = element < width
        head, at = (element // HEAD_SIZE).to(tl.int64), element % HEAD_SIZE
        block, place = slot // page, slot % page
        key = tl.load(key_ptr + token * key_token + head * key_head + at, mask=mask)
        value = tl.load(value_ptr + token * value_token + head * value_head + at, mask=mask)
        key_to = key_cache_ptr + block * key_block + place * key_place + head * key_cache_head + at
        value_to = value_cache_ptr + block * value_block + place * value_place + head * value_cache_head + at
        tl.store(key_to, key, mask=mask)
        tl.store(value_to, value, mask=mask)


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
    if key.shape[1] * key.shape[2] > BLOCK * _MAX_TILES:
        return "too many elements per token"
    if slot_mapping.stride(0) != 1 and slot_mapping.shape[0] > 1:
        return "slot_mapping not contiguous"
    return None


def _slots(cache: torch.Tensor) -> tuple[int, int, tuple[int, int, int]]:
    """(slots, slots per block, strides of block, place and head) of a cache with or without a block axis."""
    if cache.dim() == 3:
        return cache.shape[0], 1, (cache.stride(0), 0, cache.stride(1))
    return cache.shape[0] * cache.shape[1], cache.shape[1], (cache.stride(0), cache.stride(1), cache.stride(2))


@kernel(
    "store_kv_cache",
    requires=Requires(device="cuda", dtypes=("float32", "float16", "bfloat16"), modules=("triton",)),
    guard=_guard,
)
def triton_tiles(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """See fk_tasks.cache.store_kv_cache."""
    tokens, width = slot_mapping.shape[0], key.shape[1] * key.shape[2]
    if not tokens or not width:
        return
    slots, page, key_strides = _slots(key_cache)
    value_strides = _slots(value_cache)[2]
    # Triton launches on the current device, which need not be the tensor's.
    with torch.cuda.device(key.device):
        fk_store_kv_cache[(tokens, triton.cdiv(width, BLOCK))](
            key,
            value,
            key_cache,
            value_cache,
            slot_mapping,
            slots,
            page,
            width,
            key.shape[2],
            key.stride(0),
            key.stride(1),
            value.stride(0),
            value.stride(1),
            *key_strides,
            *value_strides,
            BLOCK=BLOCK,
        )
