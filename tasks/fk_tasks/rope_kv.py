"""Rotary position embedding together with the write into a paged key-value cache.

Shape suffixes: T tokens, D head size, R rotated dimensions of a head, P positions.

The arithmetic and its two rounding orders are rotary_embedding's, the addressing is store_kv_cache's.
"""

from collections.abc import Callable
from typing import Any

import torch

from fk_plugin.task import Baseline, Cost, Mirror, Overload, Task, Workload
from fk_tasks import _regions
from fk_tasks import _rotary_data as data
from fk_tasks.cache import store_kv_cache
from fk_tasks.rotary import by_head, oracle_heads, rotary_embedding_returning, rotated

_PAGE = 16  # vLLM's default block_size on CUDA


def rope_kv_write(
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
    """Rotate query and key into query_out and key_out, and copy the rotated key and the value into the caches.

    Args:
        query, key, value: [T, heads * D] or [T, heads, D]; key and value have the same number of heads.
        query_out, key_out: like query and key, written. They may be query and key themselves, the engines' in-place
            form; then a call cannot be repeated, so a kernel that fails must do so before its first write.
        key_cache, value_cache: [blocks, page, kv heads, D] or [slots, kv heads, D] of key's dtype; written, any
            strides.
        positions, cos_sin_cache, head_size, is_neox, round_products: as for rotary_embedding.
        slot_mapping: [T], int64 or int32, each slot at most once. A negative slot is padding and writes nowhere into
            the caches; its row of query_out and key_out is written all the same.

    Raises:
        IndexError: a position outside the table or a slot past the cache's end. (Kernels cannot raise for device
            values; they leave such rows alone.)
    """
    variant = (positions, cos_sin_cache, is_neox, round_products)
    by_head(query_out, head_size).copy_(rotated(by_head(query, head_size), *variant))
    turned_THD = rotated(by_head(key, head_size), *variant)
    by_head(key_out, head_size).copy_(turned_THD)
    store_kv_cache(turned_THD, by_head(value, head_size), key_cache, value_cache, slot_mapping)


def _oracle(*args: Any) -> None:
    query, key, value, query_out, key_out, key_cache, value_cache, positions, table, slots, head_size, *variant = args
    is_neox = variant[0] if variant else True
    turned_THD = oracle_heads(by_head(key, head_size), positions, table, is_neox)
    by_head(query_out, head_size).copy_(oracle_heads(by_head(query, head_size), positions, table, is_neox))
    by_head(key_out, head_size).copy_(turned_THD)
    store_kv_cache(turned_THD, by_head(value, head_size), key_cache, value_cache, slots)


def _native(*args: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Without padding, which no measured workload has: selecting rows by a mask could not be captured in a graph."""
    query, key, value, _, _, key_cache, value_cache, positions, table, slots, head_size, *variant = args
    turned = rotary_embedding_returning(query, key, positions, table, head_size, *variant)
    for cache, rows in ((key_cache, turned[1]), (value_cache, value)):
        where = (slots,) if cache.dim() == 3 else (slots // cache.shape[1], slots % cache.shape[1])
        cache[where] = by_head(rows, head_size)
    return turned


def _fake(*_: Any) -> None:
    return None


def _tokens(*args: Any) -> int:
    return args[9].shape[0]


def _take_rows(args: tuple[Any, ...], start: int, stop: int) -> tuple[Any, ...]:
    rows, caches, table = data.take_rows((*args[:5], args[7], args[9]), start, stop), args[5:7], args[8]
    return *rows[:5], *caches, rows[5], table, rows[6], *args[10:]


def _caches(workload: Workload, device: str, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Twice as many slots as tokens, both caches in one buffer as vLLM has them, or flat as SGLang does."""
    heads, size, page = (workload.axes.get(n, _PAGE) for n in ("kv_heads", "head_size", "page"))
    blocks = -(-max(1, 2 * workload.axes["tokens"]) // page)
    both = torch.randn((blocks, 2, page, heads, size), generator=generator, device=device)
    both = both.to(getattr(torch, workload.dtype))
    if workload.layout in ("flat", "float32_table"):
        return both[:, 0].reshape(-1, heads, size), both[:, 1].reshape(-1, heads, size)
    return both[:, 0], both[:, 1]


def _inputs(workload: Workload, device: str, seed: int) -> tuple[Any, ...]:
    generator = torch.Generator(device).manual_seed(seed)
    query, key, value = data.heads(workload, generator)
    outs = (query, key) if workload.layout == "in_place" else (query.flip(-1), key.flip(-1))
    caches = _caches(workload, device, generator)
    slots = caches[0].shape[0] * (caches[0].shape[1] if caches[0].dim() == 4 else 1)
    tokens, padded = workload.axes["tokens"], workload.axes.get("padded", 0)
    slot_mapping = torch.randperm(slots, generator=generator, device=device)[:tokens]
    slot_mapping[tokens - padded :] = -1
    slot_mapping = slot_mapping.to(torch.int32) if workload.layout == "int32" else slot_mapping
    where, table = data.positions(workload, generator), data.table(workload, generator)
    size = workload.axes["head_size"]
    return query, key, value, *outs, *caches, where, table, slot_mapping, size, *data.variants(workload)


def _cost(workload: Workload) -> Cost:
    tokens, q_heads, kv_heads, size = (workload.axes[n] for n in ("tokens", "q_heads", "kv_heads", "head_size"))
    width = torch.finfo(getattr(torch, workload.dtype)).bits // 8
    rotary = workload.axes["rotary"]
    table = min(tokens, workload.axes["positions"]) * rotary * (4 if workload.layout == "float32_table" else width)
    # Query read and written, key read and written twice, value read and written; a position and a slot per token.
    moved = tokens * (2 * q_heads + 5 * kv_heads) * size * width
    return Cost(bytes=moved + table + 16 * tokens, flops=3 * tokens * (q_heads + kv_heads) * rotary)


def _vllm(device: str) -> Callable[..., Any]:
    from vllm import _custom_ops as ops

    one = torch.ones((), dtype=torch.float32, device=device)

    def run(*args: Any) -> None:
        query, key, value, query_out, key_out, key_cache, value_cache, positions, table, slots, size, *variant = args
        for out, x in ((query_out, query), (key_out, key)):
            if out.data_ptr() != x.data_ptr():  # vLLM rotates in place
                out.copy_(x)
        ops.rotary_embedding(positions.long(), query_out, key_out, size, table.to(query.dtype), *variant[:1] or [True])
        rows = (by_head(key_out, size), by_head(value, size))
        ops.reshape_and_cache_flash(*rows, key_cache, value_cache, slots.long(), "auto", one, one)

    return run


def _sglang(device: str) -> Callable[..., Any]:
    from sglang.jit_kernel.rope import FusedSetKVBufferArg
    from sglang.jit_kernel.rope import apply_rope_with_cos_sin_cache_inplace as rotate

    def run(*args: Any) -> None:
        query, key, value, query_out, key_out, key_cache, value_cache, positions, table, slots, size, *variant = args
        for out, x in ((query_out, query), (key_out, key)):
            if out.data_ptr() != x.data_ptr():  # SGLang rotates in place
                out.copy_(x)
        # SGLang's cache is flat and has no negative slots: its padding goes to the reserved slot 0.
        flat = [cache.view(-1, cache.shape[-2] * size) for cache in (key_cache, value_cache)]
        fused = FusedSetKVBufferArg(value=by_head(value, size), k_buffer=flat[0], v_buffer=flat[1], cache_loc=slots)
        q, k = (by_head(x, size) for x in (query_out, key_out))
        neox = variant[0] if variant else True
        rotate(q=q, k=k, cos_sin_cache=table.float(), positions=positions, is_neox=neox, fused_args=fused)

    return run


_EDGES = (
    *data.EDGES,
    data.edge("padded", 48, padded=15),
    data.edge("all-padded", 8, padded=8),
    data.edge("flat-cache", 33, "flat", padded=4),
    data.edge("odd-page", 33, page=5, padded=4),
    data.edge("in-place", 33, "in_place", padded=4),
)

ROPE_KV_WRITE = Task(
    name="rope_kv_write",
    summary="rotary position embedding and the write of rotated keys and values into a paged cache, in one pass",
    overloads=(
        Overload(
            schema="rope_kv_write(Tensor query, Tensor key, Tensor value, Tensor(a!) query_out, Tensor(b!) key_out, "
            "Tensor(c!) key_cache, Tensor(d!) value_cache, Tensor positions, Tensor cos_sin_cache, "
            "Tensor slot_mapping, int head_size, bool is_neox=True, bool round_products=True) -> ()",
            reference=rope_kv_write,
            fake=_fake,
        ),
    ),
    workloads=data.workloads(),
    edge_workloads=_EDGES,
    make_inputs=_inputs,
    cost=_cost,
    tokens=_tokens,
    take_rows=_take_rows,
    oracle=_oracle,
    insensitive=dict.fromkeys(("query_out", "key_out"), "written whole, never read"),
    baselines=(
        Baseline(name="vllm.rotary_then_cache", engine="vllm", load=_vllm, devices=("cuda",)),
        Baseline(name="sglang.rope_store", engine="sglang", load=_sglang, devices=("cuda",)),
    ),
    region=_regions.rotated_and_written(_native),
    mirrors=(
        Mirror(
            engine="vllm",
            target="vllm.v1.attention.backend:AttentionImpl.do_rope_and_kv_cache_update",
            signature="(self, layer: vllm.v1.attention.backend.AttentionLayer, query: torch.Tensor, "
            "key: torch.Tensor, value: torch.Tensor, positions: torch.Tensor, cos_sin_cache: torch.Tensor, "
            "is_neox: bool, kv_cache: torch.Tensor, layer_slot_mapping: torch.Tensor)",
        ),
        # With fused_args; SGLang pads with its reserved slot 0 instead of -1.
        Mirror(
            engine="sglang",
            target="sglang.jit_kernel.rope:apply_rope_with_cos_sin_cache_inplace",
            signature="(q: 'torch.Tensor', k: 'torch.Tensor', cos_sin_cache: 'torch.Tensor', "
            "positions: 'torch.Tensor', *, is_neox: 'bool', rope_dim: 'int' = 0, "
            "fused_args: 'Optional[FusedSetKVBufferArg]' = None) -> 'None'",
            arguments={"round_products": False},
        ),
    ),
)
