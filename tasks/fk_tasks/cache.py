"""Writes into a paged key-value cache.

Shape suffixes: T tokens, H key-value heads, D head size, B blocks, P slots per block.
"""

from collections.abc import Callable
from typing import Any

import torch

from fk_plugin.task import Baseline, Cost, Mirror, Overload, Task, Workload

# `num_key_value_heads` and head size of each model's published config.json.
_MODELS = {"SmolLM2-135M": (3, 64), "Llama-3.1-8B": (8, 128), "Qwen3-30B-A3B": (4, 128)}
_DECODE_TOKENS = (1, 8, 32, 128, 256)
_PREFILL_TOKENS = (512, 2048, 8192)
_PAGE = 16  # vLLM's default block_size on CUDA


def store_kv_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Copy row t of key and value into slot slot_mapping[t] of the caches, bit for bit.

    Args:
        key, value: [>= T, H, D] of the caches' dtype; engines pass slices of the fused qkv projection. Rows from T on
            are padding and are not read.
        key_cache, value_cache: [B, P, H, D] (slot s is block s // P, place s % P) or [slots, H, D]; written, any
            strides. vLLM's two caches are interleaved views of one buffer.
        slot_mapping: [T], int64 or int32, one slot per token, each at most once. A negative slot is padding and writes
            nowhere.

    Not covered: caches of another dtype than key's (FP8 with scales).

    Raises:
        IndexError: a slot past the cache's end. (Kernels cannot raise for device values; they must not write either.)
    """
    slots_T = slot_mapping.to(torch.int64)
    rows = (slots_T >= 0).nonzero().squeeze(1)
    slots_T = slots_T[rows]
    for new_THD, cache in ((key, key_cache), (value, value_cache)):
        if cache.dim() == 3:
            cache[slots_T] = new_THD[rows]
        else:
            cache[slots_T // cache.shape[1], slots_T % cache.shape[1]] = new_THD[rows]


def _fake(*_: Any) -> None:
    return None


def _tokens(key: torch.Tensor, value: torch.Tensor, key_cache: torch.Tensor, *rest: torch.Tensor) -> int:
    return rest[-1].shape[0]


def _take_rows(args: tuple[Any, ...], start: int, stop: int) -> tuple[Any, ...]:
    key, value, key_cache, value_cache, slot_mapping = args
    return key[start:stop], value[start:stop], key_cache, value_cache, slot_mapping[start:stop]


def _caches(workload: Workload, tokens: int, device: str, generator: torch.Generator) -> list[torch.Tensor]:
    heads, size = workload.axes["heads"], workload.axes["head_size"]
    page = workload.axes.get("page", _PAGE)
    blocks = -(-max(1, 2 * tokens) // page)
    shape = (blocks * page, heads, size) if workload.layout == "flat" else (blocks, page, heads, size)
    dtype = getattr(torch, workload.dtype)
    if workload.layout == "interleaved":  # vLLM's FlashAttention layout [2, B, ...] has been [B, 2, ...] as well
        both = torch.randn((shape[0], 2, *shape[1:]), generator=generator, device=device).to(dtype)
        return [both[:, 0], both[:, 1]]
    if workload.layout == "head_major":
        wide = (2, shape[0], shape[2], shape[1], shape[3])
        both = torch.randn(wide, generator=generator, device=device).to(dtype)
        return [both[0].transpose(1, 2), both[1].transpose(1, 2)]
    both = torch.randn((2, *shape), generator=generator, device=device).to(dtype)
    return [both[0], both[1]]


def _inputs(workload: Workload, device: str, seed: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator(device).manual_seed(seed)
    tokens, heads, size = (workload.axes[n] for n in ("tokens", "heads", "head_size"))
    rows = tokens + workload.axes.get("extra_rows", 0)
    # The projection's output is [T, q + k + v]; k and v are views of it.
    qkv = torch.randn((rows, 4 * heads * size), generator=generator, device=device).to(getattr(torch, workload.dtype))
    key, value = (qkv[:, i * heads * size : (i + 1) * heads * size].view(rows, heads, size) for i in (2, 3))
    caches = _caches(workload, tokens, device, generator)
    slots = caches[0].shape[0] * (caches[0].shape[1] if caches[0].dim() == 4 else 1)
    slot_mapping = torch.randperm(slots, generator=generator, device=device)[:tokens]
    if "padded" in workload.axes:  # CUDA graphs run a bucket of rows; those beyond the batch carry slot -1
        slot_mapping[tokens - workload.axes["padded"] :] = -1
        if workload.axes["padded"] < tokens:
            slot_mapping[: 1 + tokens // 16] = -1
    return key, value, *caches, slot_mapping.to(torch.int32 if workload.layout == "int32" else torch.int64)


def _cost(workload: Workload) -> Cost:
    live = workload.axes["tokens"] - workload.axes.get("padded", 0)
    width = torch.finfo(getattr(torch, workload.dtype)).bits // 8
    row = workload.axes["heads"] * workload.axes["head_size"] * width
    # Key and value, read and written, and one int64 slot per token. No arithmetic.
    return Cost(bytes=4 * live * row + 8 * workload.axes["tokens"], flops=0)


def _edge(name: str, tokens: int, layout: str = "contiguous", **axes: int) -> Workload:
    sizes = {"tokens": tokens, "heads": 4, "head_size": 128, **axes}
    return Workload(name=f"edge-{name}", axes=sizes, dtype="bfloat16", source="edge case", phase="edge", layout=layout)


def _vllm(device: str) -> Callable[..., Any]:
    from vllm import _custom_ops as ops

    one = torch.ones((), dtype=torch.float32, device=device)

    def run(key: Any, value: Any, key_cache: Any, value_cache: Any, slot_mapping: Any) -> None:
        ops.reshape_and_cache_flash(key, value, key_cache, value_cache, slot_mapping, "auto", one, one)

    return run


def _sglang(device: str) -> Callable[..., Any]:
    from sglang.jit_kernel.kvcache import store_cache

    def run(key: Any, value: Any, key_cache: Any, value_cache: Any, slot_mapping: Any) -> None:
        row = key.shape[1] * key.shape[2]
        store_cache(key.flatten(1), value.flatten(1), key_cache.view(-1, row), value_cache.view(-1, row), slot_mapping)

    return run


STORE_KV_CACHE = Task(
    name="store_kv_cache",
    summary="write new keys and values into their slots of a paged cache; padded rows write nowhere",
    overloads=(
        Overload(
            schema="store_kv_cache(Tensor key, Tensor value, Tensor(a!) key_cache, Tensor(b!) value_cache, "
            "Tensor slot_mapping) -> ()",
            reference=store_kv_cache,
            fake=_fake,
        ),
    ),
    workloads=tuple(
        Workload(
            name=f"{model.lower()}-{phase}-{tokens}",
            axes={"tokens": tokens, "heads": heads, "head_size": size},
            dtype="bfloat16",
            source=f"{model} self_attn.attn, block_size {_PAGE}",
            phase=phase,
        )
        for model, (heads, size) in _MODELS.items()
        for phase, counts in (("decode", _DECODE_TOKENS), ("prefill", _PREFILL_TOKENS))
        for tokens in counts
    ),
    edge_workloads=(
        _edge("no-rows", 0),
        _edge("one-row", 1),
        _edge("odd-size", 7, heads=3, head_size=80, page=5),
        _edge("odd-head", 5, heads=3, head_size=7, page=3),
        _edge("padded", 48, padded=15),
        _edge("all-padded", 8, padded=8),
        _edge("key-longer-than-slots", 9, extra_rows=7),
        _edge("int32-slots", 33, "int32"),
        _edge("flat-cache", 33, "flat", padded=4),
        _edge("interleaved-cache", 33, "interleaved", padded=4),
        _edge("head-major-cache", 33, "head_major", padded=4),
    ),
    make_inputs=_inputs,
    cost=_cost,
    tokens=_tokens,
    compare="exact",
    take_rows=_take_rows,
    mirrors=(
        Mirror(
            engine="vllm",
            target="vllm._custom_ops:reshape_and_cache_flash",
            signature="(key: torch.Tensor, value: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, "
            "slot_mapping: torch.Tensor, kv_cache_dtype: str, k_scale: torch.Tensor, v_scale: torch.Tensor) -> None",
        ),
        # SGLang pads with its reserved slot 0 instead of -1, which its PyTorch path would take for the last slot.
        Mirror(
            engine="sglang",
            target="sglang.srt.mem_cache.memory_pool:_set_kv_buffer_impl",
            signature="(k: 'torch.Tensor', v: 'torch.Tensor', k_cache: 'torch.Tensor', v_cache: 'torch.Tensor', "
            "indices: 'torch.Tensor', row_dim: 'int', store_dtype: 'torch.dtype', device_module: 'Any', "
            "size_limit: 'int', alt_stream: 'Optional[torch.cuda.Stream]' = None, same_kv_dim: 'bool' = True) "
            "-> 'None'",
        ),
    ),
    baselines=(
        Baseline(name="vllm.reshape_and_cache_flash", engine="vllm", load=_vllm, devices=("cuda",)),
        Baseline(name="sglang.store_cache", engine="sglang", load=_sglang, devices=("cuda",)),
    ),
)
