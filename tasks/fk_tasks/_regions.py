"""What stands beside an operator in an engine's compiled graph, for `fk bench --mode compile`.

Matrix products are library calls that nothing is fused into; what is at stake is the code between them, pointwise and
row-wise. Where a neighbour is a product, a narrow one stands for it here, so that it does not hide the operator.

Shape suffixes: T tokens, D hidden size, Q query columns, K key columns, N = 128 columns of a narrow product.
"""

from collections.abc import Callable
from typing import Any

import torch

from fk_plugin.task import Region, Workload

_NARROW = 128
_VOCABULARY = 1024


def _random(workload: Workload, device: str, seed: int, *shapes: tuple[int, int]) -> tuple[torch.Tensor, ...]:
    """Matrices [in, out] of the workload's dtype whose products keep the variance."""
    generator = torch.Generator(device).manual_seed(seed)
    return tuple(
        (torch.randn(shape, generator=generator, device=device) / shape[0] ** 0.5).to(getattr(torch, workload.dtype))
        for shape in shapes
    )


def _gated_extra(workload: Workload, device: str, seed: int) -> tuple[torch.Tensor, ...]:
    return _random(workload, device, seed, (workload.axes["intermediate"], _NARROW))


def _gated(op: Callable[..., Any], args: tuple[Any, ...], extra: tuple[Any, ...]) -> torch.Tensor:
    return torch.mm(op(*args), extra[0])


# A gated activation: gate_up_proj before it makes the operator's input, down_proj stands behind it.
GATED = Region(run=_gated, source="vllm.model_executor.models.llama:LlamaMLP.forward", extra=_gated_extra)


def _embed_extra(workload: Workload, device: str, seed: int) -> tuple[torch.Tensor, ...]:
    width, tokens = workload.axes["hidden"], workload.axes["tokens"]
    proj_DN, table_DV = _random(workload, device, seed, (width, _NARROW), (width, _VOCABULARY))
    shape = (tokens, workload.axes["heads"]) if "heads" in workload.axes else (tokens,)
    generator = torch.Generator(device).manual_seed(seed + 1)
    ids_T = torch.randint(0, _VOCABULARY, shape, generator=generator, device=device)
    return (table_DV.t() * width**0.5).contiguous(), ids_T, proj_DN


def _embed(op: Callable[..., Any], args: tuple[Any, ...], extra: tuple[Any, ...]) -> torch.Tensor:
    x, *rest = args
    table_VD, ids_T, proj_DN = extra
    return op(table_VD[ids_T] + x, *rest) @ proj_DN


# A first norm: a gather and a sum before it, a projection behind it.
EMBEDDED = Region(run=_embed, source="vllm.model_executor.models.llama:LlamaModel.forward", extra=_embed_extra)


def _add_extra(workload: Workload, device: str, seed: int) -> tuple[torch.Tensor, ...]:
    width = workload.axes["hidden"]
    return _random(workload, device, seed, (_NARROW, width), (width, _NARROW))


def _add(op: Callable[..., Any], args: tuple[Any, ...], extra: tuple[Any, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    x, residual, *rest = args
    x_TD = x[:, :_NARROW] @ extra[0]
    op(x_TD, residual, *rest)
    return x_TD @ extra[1], residual


# A norm inside a layer: o_proj or down_proj before it, qkv_proj or gate_up_proj behind it.
ADDED = Region(run=_add, source="vllm.model_executor.models.llama:LlamaDecoderLayer.forward", extra=_add_extra)


def _qkv_extra(workload: Workload, device: str, seed: int) -> tuple[torch.Tensor, ...]:
    columns = (workload.axes["q_heads"] + workload.axes["kv_heads"]) * workload.axes["head_size"]
    return _random(workload, device, seed, (_NARROW, columns))


def _projected(query: torch.Tensor, key: torch.Tensor, proj_NQK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Query and key as slices of one product, as qkv_proj leaves them."""
    qk_TQK = query[:, :_NARROW] @ proj_NQK
    split: list[torch.Tensor] = list(qk_TQK.split([query.shape[1], key.shape[1]], dim=-1))
    return split[0], split[1]


def _rotate(op: Callable[..., Any], args: tuple[Any, ...], extra: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
    written = _projected(*args[:2], *extra)
    return op(*written, *args[2:]) or written


def _write(op: Callable[..., Any], args: tuple[Any, ...], extra: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
    written = _projected(*args[:2], *extra)
    return *(op(*written, args[2], *written, *args[5:]) or written), *args[5:7]


_ATTENTION = "vllm.model_executor.models.llama:LlamaAttention.forward"


# qkv_proj before it; attention behind it is opaque to the compiler. The engines' own code returns new tensors.


def rotated(native: Callable[..., Any]) -> Region:
    """A rotation."""
    return Region(run=_rotate, source=_ATTENTION, extra=_qkv_extra, native=native)


def rotated_and_written(native: Callable[..., Any]) -> Region:
    """A rotation and the write into the cache."""
    return Region(run=_write, source=_ATTENTION, extra=_qkv_extra, native=native)
