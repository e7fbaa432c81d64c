"""Rotary position embedding.

Shape suffixes: T tokens, H heads, D head size, R rotated dimensions of a head, P positions.

Two rounding orders are in use, and in bfloat16 they differ in about a third of all elements, so the order is an
argument of the operator:
    round_products=True   the table in x's dtype; both products rounded, then their difference or sum (both engines'
                          PyTorch code)
    round_products=False  the table as it is, float32 arithmetic, one rounding (vLLM's compiled operator with a table
                          in x's dtype, SGLang's and FlashInfer's CUDA kernels with a float32 table)
"""

from collections.abc import Callable
from typing import Any

import torch

from fk_plugin.task import Baseline, Cost, Mirror, Overload, Task, Workload
from fk_tasks import _regions
from fk_tasks import _rotary_data as data


def rotary_embedding(
    query: torch.Tensor,
    key: torch.Tensor,
    positions: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    head_size: int,
    is_neox: bool = True,
    round_products: bool = True,
) -> None:
    """Rotate the first R dimensions of every head of query and key, in place.

    Args:
        query, key: [T, heads * D] or [T, heads, D], float32, float16 or bfloat16, written; any strides, without
            overlap. Both engines allow a call without a key: then it is [T, 0].
        positions: [T], int64 or int32, rows of the table.
        cos_sin_cache: [P, R], R even and at most D: R / 2 cosines and R / 2 sines, of query's dtype or float32.
        head_size: D.
        is_neox: dimension i is paired with i + R / 2; False pairs 2 i with 2 i + 1 (GPT-J, "interleaved").
        round_products: see the module.

    Raises:
        IndexError: a position outside the table. (Kernels cannot raise for device values; they leave such rows alone.)
    """
    for x in (query, key):
        heads_THD = by_head(x, head_size)
        heads_THD.copy_(rotated(heads_THD, positions, cos_sin_cache, is_neox, round_products))


def rotary_embedding_returning(
    query: torch.Tensor,
    key: torch.Tensor,
    positions: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    head_size: int,
    is_neox: bool = True,
    round_products: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What rotary_embedding writes into query and key, as new contiguous tensors."""
    query_out, key_out = (
        rotated(by_head(x, head_size), positions, cos_sin_cache, is_neox, round_products).view(x.shape)
        for x in (query, key)
    )
    return query_out, key_out


def by_head(x: torch.Tensor, head_size: int) -> torch.Tensor:
    """[T, H * D] or [T, H, D] as a view [T, H, D]."""
    return x if x.dim() == 3 else x.unflatten(-1, (x.shape[-1] // head_size, head_size))


def rotated(
    x_THD: torch.Tensor, positions: torch.Tensor, table_PR: torch.Tensor, is_neox: bool, round_products: bool
) -> torch.Tensor:
    """x_THD with the first R dimensions of every head rotated, as a new contiguous tensor."""
    cos_T1R, sin_T1R = table_PR.index_select(0, positions.flatten()).unsqueeze(1).chunk(2, dim=-1)
    rotary = table_PR.shape[-1]
    dtype = x_THD.dtype if round_products else torch.promote_types(x_THD.dtype, torch.float32)
    first, second = _pairs(x_THD[..., :rotary].to(dtype), is_neox)
    cos, sin = cos_T1R.to(dtype), sin_T1R.to(dtype)
    out_THD = x_THD.clone(memory_format=torch.contiguous_format)
    out_first, out_second = _pairs(out_THD[..., :rotary], is_neox)
    out_first.copy_(first * cos - second * sin)
    out_second.copy_(second * cos + first * sin)
    return out_THD


def _pairs(x_THR: torch.Tensor, is_neox: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The two members of every pair, as views [T, H, R / 2]."""
    if is_neox:
        half = x_THR.shape[-1] // 2
        return x_THR[..., :half], x_THR[..., half:]
    return x_THR[..., ::2], x_THR[..., 1::2]


def oracle_heads(x_THD: torch.Tensor, positions: torch.Tensor, table_PR: torch.Tensor, is_neox: bool) -> torch.Tensor:
    """The same in float64, written as a product of complex numbers."""
    cos_TR, sin_TR = table_PR[positions.long()].chunk(2, dim=-1)
    first, second = _pairs(x_THD[..., : table_PR.shape[-1]], is_neox)
    turned = torch.complex(first, second) * torch.complex(cos_TR, sin_TR).unsqueeze(1)
    parts = (turned.real, turned.imag)
    rotated_THR = torch.cat(parts, dim=-1) if is_neox else torch.stack(parts, dim=-1).flatten(-2)
    return torch.cat((rotated_THR, x_THD[..., table_PR.shape[-1] :]), dim=-1)


def _oracle(query: Any, key: Any, positions: Any, table: Any, head_size: int, is_neox: bool = True, *_: Any) -> None:
    for x in (query, key):
        heads_THD = by_head(x, head_size)
        heads_THD.copy_(oracle_heads(heads_THD, positions, table, is_neox))


def _fake(*_: Any) -> None:
    return None


def _fake_returning(query: torch.Tensor, key: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return query.new_empty(query.shape), key.new_empty(key.shape)


def _tokens(query: torch.Tensor, key: torch.Tensor, positions: torch.Tensor, *_: Any) -> int:
    return positions.numel()


def _take_rows(args: tuple[Any, ...], start: int, stop: int) -> tuple[Any, ...]:
    return *data.take_rows(args[:3], start, stop), *args[3:]


def _inputs(workload: Workload, device: str, seed: int) -> tuple[Any, ...]:
    generator = torch.Generator(device).manual_seed(seed)
    query, key, _ = data.heads(workload, generator)
    where, table = data.positions(workload, generator), data.table(workload, generator)
    return query, key, where, table, workload.axes["head_size"], *data.variants(workload)


def _cost(workload: Workload) -> Cost:
    tokens, rotary = workload.axes["tokens"], workload.axes["rotary"]
    elements = tokens * (workload.axes["q_heads"] + workload.axes["kv_heads"]) * rotary
    width = torch.finfo(getattr(torch, workload.dtype)).bits // 8
    table = min(tokens, workload.axes["positions"]) * rotary * (4 if workload.layout == "float32_table" else width)
    # The rotated dimensions read and written, a row of the table and a position per token; two products and an add.
    return Cost(bytes=2 * elements * width + table + 8 * tokens, flops=3 * elements)


def _vllm(device: str) -> Callable[..., Any]:
    from vllm import _custom_ops as ops

    def run(query: Any, key: Any, positions: Any, table: Any, size: int, neox: bool = True, *_: Any) -> None:
        half = table.shape[1] // 2
        if device == "cpu" and neox and half > 16 and half % 16:
            raise NotImplementedError(f"vLLM's CPU build ends the process for {half} pairs, no multiple of 16")
        # Two axes, as vLLM's models have them: its CPU build misplaces heads that lie on an axis of their own.
        rows = [x if x.dim() == 2 else x.view(x.shape[0], x.shape[1] * x.shape[2]) for x in (query, key)]
        rows[1] = rows[1] if rows[1].shape[1] else None
        ops.rotary_embedding(positions.long(), *rows, size, table.to(query.dtype), neox)

    return run


def _sglang(device: str) -> Callable[..., Any]:
    from sglang.jit_kernel.rope import apply_rope_with_cos_sin_cache_inplace as rotate

    def run(query: Any, key: Any, positions: Any, table: Any, size: int, neox: bool = True, *_: Any) -> None:
        q, k = (by_head(x, size)[..., : table.shape[-1]] for x in (query, key))
        rotate(q=q, k=k, cos_sin_cache=table.float(), positions=positions, is_neox=neox)

    return run


def _flashinfer(device: str) -> Callable[..., Any]:
    from flashinfer.rope import apply_rope_with_cos_sin_cache_inplace as rotate

    def run(query: Any, key: Any, positions: Any, table: Any, size: int, neox: bool = True, *_: Any) -> None:
        rotate(positions, query.flatten(1), key.flatten(1), size, table.float(), neox)

    return run


_FORM = "Tensor positions, Tensor cos_sin_cache, int head_size, bool is_neox=True, bool round_products=True"
_VLLM = (
    "(self, positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor | None = None) "
    "-> tuple[torch.Tensor, torch.Tensor | None]"
)
_SGLANG = (
    "(self, positions: 'torch.Tensor', query: 'torch.Tensor', key: 'torch.Tensor', "
    "offsets: 'Optional[torch.Tensor]' = None, fused_set_kv_buffer_arg: 'Optional[{}]' = None) "
    "-> 'Tuple[torch.Tensor, torch.Tensor]'"
)

ROTARY_EMBEDDING = Task(
    name="rotary_embedding",
    summary="rotary position embedding of query and key in place, whole or part of each head, either pairing",
    # The tensors that decide where a kernel may run come first; engines pass positions first.
    overloads=(
        Overload(
            schema=f"rotary_embedding(Tensor(a!) query, Tensor(b!) key, {_FORM}) -> ()",
            reference=rotary_embedding,
            fake=_fake,
        ),
        Overload(
            schema=f"rotary_embedding.returning(Tensor query, Tensor key, {_FORM}) -> (Tensor, Tensor)",
            reference=rotary_embedding_returning,
            fake=_fake_returning,
        ),
    ),
    workloads=data.workloads(),
    edge_workloads=(*data.EDGES, data.edge("no-key", 9, kv_heads=0)),
    make_inputs=_inputs,
    cost=_cost,
    tokens=_tokens,
    take_rows=_take_rows,
    oracle=_oracle,
    baselines=(
        Baseline(name="vllm._C.rotary_embedding", engine="vllm", load=_vllm),
        Baseline(name="sglang.apply_rope_inplace", engine="sglang", load=_sglang, devices=("cuda",)),
        Baseline(name="flashinfer.apply_rope_inplace", engine="flashinfer", load=_flashinfer, devices=("cuda",)),
    ),
    region=_regions.rotated(rotary_embedding_returning),
    mirrors=tuple(
        Mirror(engine=engine, target=f"{engine}.{path}", signature=signature, arguments={"round_products": rounds})
        for engine, path, signature, rounds in (
            ("vllm", "model_executor.layers.rotary_embedding.base:RotaryEmbedding.forward_native", _VLLM, True),
            ("vllm", "model_executor.layers.rotary_embedding.base:RotaryEmbedding.forward_cpu", _VLLM, False),
            (
                "sglang",
                "srt.layers.rotary_embedding.base:RotaryEmbedding.forward_native",
                _SGLANG.format("FusedSetKVBufferArg"),
                True,
            ),
            (
                "sglang",
                "srt.layers.rotary_embedding.base:RotaryEmbedding.forward_cuda",
                _SGLANG.format("Union[FusedSetKVBufferArg, dict]"),
                False,
            ),
        )
    ),
)
