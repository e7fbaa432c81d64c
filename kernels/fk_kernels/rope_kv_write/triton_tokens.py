"""rope_kv_write for CUDA in Triton: one program for HEADS heads of one token, query's and key's numbered through.

The programs of key's heads also copy the value and fill the caches, from registers: the rotated key is not read back.
Both members of a pair belong to the same thread, which reads both before it writes either: in place is safe.
"""

import torch
import triton
import triton.language as tl

from fk_plugin.kernel import Requires, kernel

_ELEMENTS = 2048  # per program at most; depends on the model's sizes only
_MAX_TILES = 65535  # grid axis 1


@triton.jit
def _rotate(a, b, cos, sin, dtype: tl.constexpr, ROUND: tl.constexpr):
    """(a cos - b sin, b cos + a sin) in float32; ROUND rounds the products to dtype."""
    ac, bs, bc, as_ = a * cos, b * sin, b * cos, a * sin
    if ROUND:
        ac, bs = ac.to(dtype).to(tl.float32), bs.to(dtype).to(tl.float32)
        bc, as_ = bc.to(dtype).to(tl.float32), as_.to(dtype).to(tl.float32)
    return (ac - bs).to(dtype), (bc + as_).to(dtype)


@triton.jit
def _either(query_at, key_at, offset, of_query, of_key):
    """The tile of query's lanes and of key's; 0 elsewhere."""
    query = tl.load(query_at + offset, mask=of_query, other=0.0)
    return tl.where(of_key, tl.load(key_at + offset, mask=of_key, other=0.0), query)


@triton.jit
def fk_rope_kv_write(
    query_ptr,
    key_ptr,
    value_ptr,
    query_out_ptr,
    key_out_ptr,
    key_cache_ptr,
    value_cache_ptr,
    position_ptr,
    table_ptr,
    slot_ptr,
    q_heads,
    all_heads,
    limit,
    table_row,
    capacity,
    page,
    query_token,
    query_head,
    key_token,
    key_head,
    value_token,
    value_head,
    query_out_token,
    query_out_head,
    key_out_token,
    key_out_head,
    key_block,
    key_place,
    key_cache_head,
    value_block,
    value_place,
    value_cache_head,
    HALF: tl.constexpr,
    SIZE: tl.constexpr,
    NEOX: tl.constexpr,
    ROUND: tl.constexpr,
    HEADS: tl.constexpr,
    PAIRS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    position = tl.load(position_ptr + token).to(tl.int64)
    slot = tl.load(slot_ptr + token).to(tl.int64)
    # Outside the table or past the cache's end: the caller's error, which a kernel can only refuse to make worse.
    if (position >= 0) & (position < limit) & (slot < capacity):
        dtype = query_ptr.dtype.element_ty
        head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS)).to(tl.int64)[:, None]
        is_query, is_key = head < q_heads, (head >= q_heads) & (head < all_heads)
        kv_head, stored, place = head - q_heads, is_key & (slot >= 0), slot % page
        query_at = query_ptr + token * query_token + head * query_head
        query_to = query_out_ptr + token * query_out_token + head * query_out_head
        key_at = key_ptr + token * key_token + kv_head * key_head
        key_to = key_out_ptr + token * key_out_token + kv_head * key_out_head
        key_slot = key_cache_ptr + slot // page * key_block + place * key_place + kv_head * key_cache_head
        value_slot = value_cache_ptr + slot // page * value_block + place * value_place + kv_head * value_cache_head

        pair = tl.arange(0, PAIRS)[None, :]
        live, row = pair < HALF, table_ptr + position * table_row + pair
        first, second = pair if NEOX else 2 * pair, pair + HALF if NEOX else 2 * pair + 1
        cos = tl.load(row, mask=live, other=0.0).to(tl.float32)
        sin = tl.load(row + HALF, mask=live, other=0.0).to(tl.float32)
        if ROUND:
            cos, sin = cos.to(dtype).to(tl.float32), sin.to(dtype).to(tl.float32)
        a = _either(query_at, key_at, first, is_query & live, is_key & live).to(tl.float32)
        b = _either(query_at, key_at, second, is_query & live, is_key & live).to(tl.float32)
        a, b = _rotate(a, b, cos, sin, dtype, ROUND)
        tl.store(query_to + first, a, mask=is_query & live)
        tl.store(query_to + second, b, mask=is_query & live)
        tl.store(key_to + first, a, mask=is_key & live)
        tl.store(key_to + second, b, mask=is_key & live)
        tl.store(key_slot + first, a, mask=stored & live)
        tl.store(key_slot + second, b, mask=stored & live)

        element = tl.arange(0, BLOCK)[None, :]
        whole = element < SIZE
        value_at = value_ptr + token * value_token + kv_head * value_head
        tl.store(value_slot + element, tl.load(value_at + element, mask=stored & whole), mask=stored & whole)
        if SIZE > 2 * HALF:
            rest = whole & (element >= 2 * HALF)
            tail = _either(query_at, key_at, element, is_query & rest, is_key & rest)
            tl.store(query_to + element, tail, mask=is_query & rest)
            tl.store(key_to + element, tail, mask=is_key & rest)
            tl.store(key_slot + element, tail, mask=stored & rest)


def _guard(*args: object) -> str | None:
    tensors = dict(
        zip(("query", "key", "value", "query_out", "key_out", "key_cache", "value_cache"), args, strict=False)
    )
    query, (positions, table, slots, head_size) = tensors["query"], args[7:11]
    for name, tensor in tensors.items():
        if tensor.dtype != query.dtype:
            return f"{name} of another dtype than query"
        if tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
            return f"last axis of {name} not contiguous"
        if not name.endswith("cache") and tensor.dim() not in (2, 3):
            return f"{name} with {tensor.dim()} axes"
    for name, tensor in (("positions", positions), ("slot_mapping", slots)):
        if tensor.dim() != 1 or (tensor.stride(0) != 1 and tensor.shape[0] > 1):
            return f"{name} not one contiguous axis"
    if table.dtype not in (query.dtype, torch.float32):
        return "table of another dtype than query or float32"
    if table.stride(-1) != 1:
        return "last axis of the table not contiguous"
    if head_size > _ELEMENTS:
        return f"heads wider than {_ELEMENTS}"
    heads = sum(_layout(tensors[name], head_size)[0] for name in ("query", "key"))
    return "too many heads" if heads > _MAX_TILES else None


def _layout(x: torch.Tensor, head_size: int) -> tuple[int, int, int]:
    """(heads, token stride, head stride)."""
    if x.dim() == 3:
        return x.shape[1], x.stride(0), x.stride(1)
    return x.shape[1] // head_size, x.stride(0), head_size


def _slots(cache: torch.Tensor) -> tuple[int, int, int]:
    """Strides of block, place and head of a cache with or without a block axis."""
    blocks = cache.unsqueeze(1) if cache.dim() == 3 else cache
    return blocks.stride(0), blocks.stride(1), blocks.stride(2)


@kernel(
    "rope_kv_write",
    requires=Requires(device="cuda", dtypes=("float32", "float16", "bfloat16"), min_sm=(8, 0), modules=("triton",)),
    guard=_guard,
)
def triton_tokens(
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
    rows = (query, key, value, query_out, key_out)
    layouts = [_layout(x, head_size) for x in rows]
    tokens, q_heads, heads = slot_mapping.shape[0], layouts[0][0], layouts[0][0] + layouts[1][0]
    if not tokens or not heads:
        return
    half, page = cos_sin_cache.shape[1] // 2, 1 if key_cache.dim() == 3 else key_cache.shape[1]
    block = triton.next_power_of_2(head_size)
    tile = min(triton.next_power_of_2(heads), max(1, _ELEMENTS // block))
    strides = [stride for layout in layouts for stride in layout[1:]]
    table = (cos_sin_cache.shape[0], cos_sin_cache.stride(0))
    # Triton launches on the current device, which need not be the tensor's.
    with torch.cuda.device(query.device):
        fk_rope_kv_write[(tokens, triton.cdiv(heads, tile))](
            *rows,
            key_cache,
            value_cache,
            positions,
            cos_sin_cache,
            slot_mapping,
            q_heads,
            heads,
            *table,
            key_cache.shape[0] * page,
            page,
            *strides,
            *_slots(key_cache),
            *_slots(value_cache),
            HALF=half,
            SIZE=head_size,
            NEOX=is_neox,
            ROUND=round_products,
            HEADS=tile,
            PAIRS=triton.next_power_of_2(half),
            BLOCK=block,
            # LLVM narrows the rounded products to 16-bit arithmetic; fused there, one of them is not rounded any more
            # (on an H200 a fifth of all elements differed from the reference).
            enable_fp_fusion=not round_products,
        )
