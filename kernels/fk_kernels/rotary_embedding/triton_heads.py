"""rotary_embedding for CUDA in Triton: one program for HEADS heads of one token, query's and key's numbered through.

Both members of a pair belong to the same thread, which reads both before it writes either: in place is safe.
"""

import torch
import triton
import triton.language as tl

from fk_plugin.kernel import Requires, kernel

_PAIRS = 1024  # per program at most; depends on the model's sizes only
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
def fk_rotary_embedding(
    query_ptr,
    key_ptr,
    position_ptr,
    table_ptr,
    q_heads,
    all_heads,
    limit,
    table_row,
    query_token,
    query_head,
    key_token,
    key_head,
    query_out_ptr,
    key_out_ptr,
    query_out_token,
    query_out_head,
    key_out_token,
    key_out_head,
    COPY: tl.constexpr,
    HALF: tl.constexpr,
    NEOX: tl.constexpr,
    ROUND: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    position = tl.load(position_ptr + token).to(tl.int64)
    # Outside the table: the caller's error, which a kernel can only refuse to make worse. The row stays as it is.
    inside = (position >= 0) & (position < limit)
    if inside | COPY:
        dtype = query_ptr.dtype.element_ty
        pair = tl.arange(0, BLOCK)
        live = pair < HALF
        first = pair if NEOX else 2 * pair
        second = pair + HALF if NEOX else 2 * pair + 1
        row = table_ptr + position * table_row + pair
        cos = tl.load(row, mask=live & inside, other=1.0).to(tl.float32)[None, :]
        sin = tl.load(row + HALF, mask=live & inside, other=0.0).to(tl.float32)[None, :]
        if ROUND:
            cos, sin = cos.to(dtype).to(tl.float32), sin.to(dtype).to(tl.float32)
        head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS)).to(tl.int64)[:, None]
        of_query = (head < q_heads) & live[None, :]
        of_key = (head >= q_heads) & (head < all_heads) & live[None, :]
        query_at = query_ptr + token * query_token + head * query_head
        key_at = key_ptr + token * key_token + (head - q_heads) * key_head
        # A lane that is not key's reads 0 there and query's value here, and the other way round.
        a = tl.load(query_at + first[None, :], mask=of_query, other=0.0).to(tl.float32)
        b = tl.load(query_at + second[None, :], mask=of_query, other=0.0).to(tl.float32)
        a = tl.where(of_key, tl.load(key_at + first[None, :], mask=of_key, other=0.0).to(tl.float32), a)
        b = tl.where(of_key, tl.load(key_at + second[None, :], mask=of_key, other=0.0).to(tl.float32), b)
        a, b = _rotate(a, b, cos, sin, dtype, ROUND)
        query_to = query_out_ptr + token * query_out_token + head * query_out_head
        key_to = key_out_ptr + token * key_out_token + (head - q_heads) * key_out_head
        tl.store(query_to + first[None, :], a, mask=of_query)
        tl.store(query_to + second[None, :], b, mask=of_query)
        tl.store(key_to + first[None, :], a, mask=of_key)
        tl.store(key_to + second[None, :], b, mask=of_key)


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
    if positions.dim() != 1 or (positions.stride(0) != 1 and positions.shape[0] > 1):
        return "positions not one contiguous axis"
    if cos_sin_cache.dtype not in (query.dtype, torch.float32):
        return "table of another dtype than query or float32"
    if cos_sin_cache.stride(-1) != 1:
        return "last axis of the table not contiguous"
    if cos_sin_cache.shape[-1] > 2 * _PAIRS:
        return f"more than {2 * _PAIRS} rotated dimensions"
    heads = sum(_layout(x, head_size)[0] for x in (query, key))
    return "too many heads" if heads > _MAX_TILES else None


def _layout(x: torch.Tensor, head_size: int) -> tuple[int, int, int]:
    """(heads, token stride, head stride)."""
    if x.dim() == 3:
        return x.shape[1], x.stride(0), x.stride(1)
    return x.shape[1] // head_size, x.stride(0), head_size


def _rest(x: torch.Tensor, head_size: int, rotary: int) -> torch.Tensor:
    """The dimensions of every head that are not rotated."""
    heads = x if x.dim() == 3 else x.unflatten(-1, (x.shape[-1] // head_size, head_size))
    return heads[..., rotary:]


@kernel(
    "rotary_embedding",
    requires=Requires(device="cuda", dtypes=("float32", "float16", "bfloat16"), min_sm=(8, 0), modules=("triton",)),
    guard=_guard,
)
def triton_heads(
    query: torch.Tensor,
    key: torch.Tensor,
    positions: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    head_size: int,
    is_neox: bool = True,
    round_products: bool = True,
    *,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> None:
    """See fk_tasks.rotary.rotary_embedding. Writes into `out` (like query and key) if given, else over them."""
    query_out, key_out = out or (query, key)
    (q_heads, *query_strides), (k_heads, *key_strides) = (_layout(x, head_size) for x in (query, key))
    outs = [_layout(x, head_size)[1:] for x in (query_out, key_out)]
    tokens, heads, half = positions.shape[0], q_heads + k_heads, cos_sin_cache.shape[1] // 2
    if out is not None and 2 * half < head_size:
        for x, x_out in ((query, query_out), (key, key_out)):
            _rest(x_out, head_size, 2 * half).copy_(_rest(x, head_size, 2 * half))
    if not tokens or not heads or not half:
        return
    block = triton.next_power_of_2(half)
    tile = min(triton.next_power_of_2(heads), max(1, _PAIRS // block))
    # Triton launches on the current device, which need not be the tensor's.
    with torch.cuda.device(query.device):
        fk_rotary_embedding[(tokens, triton.cdiv(heads, tile))](
            query,
            key,
            positions,
            cos_sin_cache,
            q_heads,
            heads,
            cos_sin_cache.shape[0],
            cos_sin_cache.stride(0),
            *query_strides,
            *key_strides,
            query_out,
            key_out,
            *outs[0],
            *outs[1],
            COPY=out is not None,
            HALF=half,
            NEOX=is_neox,
            ROUND=round_products,
            HEADS=tile,
            BLOCK=block,
            # LLVM narrows the rounded products to 16-bit arithmetic; fused there, one of them is not rounded any more
            # (on an H200 a fifth of all elements differed from the reference).
            enable_fp_fusion=not round_products,
        )
