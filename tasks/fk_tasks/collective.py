"""Sums over the ranks of a tensor-parallel group.

Both operators run in every rank, on its share, with torch.distributed up. `group` names a group registered with
torch.distributed ("" is the default group), because an operator's schema cannot carry the object.

Shape suffixes: T tokens, D hidden size, K input width of one rank, N output width.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from fk_plugin.task import Baseline, Cost, Mirror, Overload, Task, Workload

# Llama-3.1-8B config.json: hidden_size 4096, intermediate_size 14336.
_HIDDEN = {"SmolLM2-135M": 576, "Llama-3.1-8B": 4096, "Qwen3-30B-A3B": 2048}
_LINEARS = {"self_attn.o_proj": (4096, 4096), "mlp.down_proj": (14336, 4096)}
_DECODE_TOKENS = (1, 8, 32, 128, 256)
_PREFILL_TOKENS = (512, 2048, 8192)
_MOST_RANKS = 8  # of one host; what a cost assumes where no group is up, so that the floor is never too high


def _group(name: str) -> Any:
    if not dist.is_available() or not dist.is_initialized():
        raise RuntimeError("this operator sums over ranks; call torch.distributed.init_process_group first.")
    if not name:
        return dist.group.WORLD
    return dist.distributed_c10d._resolve_process_group(name)


def all_reduce(x: torch.Tensor, group: str = "") -> torch.Tensor:
    """The sum of x over the ranks of `group`, the same bits in every rank.

    Args:
        x: any shape, floating point, any strides; the same shape in every rank.
        group: see the module.

    Returns: new, contiguous, of x's shape and dtype.

    Raises:
        RuntimeError: torch.distributed is not initialised.
    """
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=_group(group))
    return total


def row_parallel_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, group: str = ""
) -> torch.Tensor:
    """x @ weight.T summed over the ranks, plus bias once.

    Args:
        x: [T, K], this rank's columns of the input.
        weight: [N, K], this rank's columns of the weight.
        bias: [N], the same in every rank; None adds nothing. Rank 0 adds it before the sum, as both engines do.
        group: see the module.

    Returns: [T, N] of x's dtype, the same in every rank. Each rank's product is rounded to x's dtype before the sum.

    Raises:
        RuntimeError: torch.distributed is not initialised.
    """
    members = _group(group)
    partial_TN = F.linear(x, weight, bias if dist.get_rank(members) == 0 else None).contiguous()
    dist.all_reduce(partial_TN, group=members)
    return partial_TN


def _fake_reduce(x: torch.Tensor, *_: Any) -> torch.Tensor:
    return x.new_empty(x.shape)


def _fake_linear(x: torch.Tensor, weight: torch.Tensor, *_: Any) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


def _tokens(x: torch.Tensor, *_: Any) -> int:
    return x.numel() // x.shape[-1]


def _place(default: int) -> tuple[int, int]:
    """(rank, ranks); (0, default) where no group is up."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, default


def _inputs_reduce(workload: Workload, device: str, seed: int) -> tuple[torch.Tensor]:
    rank, _ = _place(1)
    generator = torch.Generator(device).manual_seed(1000 * seed + rank)  # every rank has its own part of the sum
    width = workload.axes["hidden"]
    room = 2 * width if workload.layout == "sliced" else width
    x_TD = torch.randn((workload.axes["tokens"], room), generator=generator, device=device)
    return (x_TD.to(getattr(torch, workload.dtype))[:, :width],)


def _inputs_linear(workload: Workload, device: str, seed: int) -> tuple[Any, ...]:
    rank, ranks = _place(1)
    axes, dtype = workload.axes, getattr(torch, workload.dtype)
    if axes["k"] % ranks:
        raise ValueError(f"{workload.name}: {axes['k']} columns cannot be shared out evenly over {ranks} ranks")
    generator = torch.Generator(device).manual_seed(1000 * seed + rank)
    width = axes["k"] // ranks
    x_TK = torch.randn((axes["tokens"], width), generator=generator, device=device).to(dtype)
    weight_NK = (torch.randn((axes["n"], width), generator=generator, device=device) * axes["k"] ** -0.5).to(dtype)
    if workload.layout == "no_bias":
        return x_TK, weight_NK, None
    same = torch.Generator(device).manual_seed(seed)
    return x_TK, weight_NK, torch.randn(axes["n"], generator=same, device=device).to(dtype)


def _cost_reduce(workload: Workload) -> Cost:
    elements = workload.axes["tokens"] * workload.axes["hidden"]
    width = torch.finfo(getattr(torch, workload.dtype)).bits // 8
    # Of one rank: its own input read, the sum written, one addition per element. Links between ranks are not counted.
    return Cost(bytes=2 * elements * width, flops=elements)


def _cost_linear(workload: Workload) -> Cost:
    tokens, n = workload.axes["tokens"], workload.axes["n"]
    k = workload.axes["k"] // _place(_MOST_RANKS)[1]
    width = torch.finfo(getattr(torch, workload.dtype)).bits // 8
    return Cost(bytes=(tokens * k + n * k + tokens * n) * width, flops=2 * tokens * n * k)


def _phases() -> list[tuple[str, int]]:
    return [("decode", t) for t in _DECODE_TOKENS] + [("prefill", t) for t in _PREFILL_TOKENS]


def _edge(name: str, layout: str = "contiguous", dtype: str = "bfloat16", **axes: int) -> Workload:
    return Workload(name=f"edge-{name}", axes=axes, dtype=dtype, source="edge case", phase="edge", layout=layout)


def _torch_reduce(device: str) -> Callable[..., Any]:
    return all_reduce


def _torch_linear(device: str) -> Callable[..., Any]:
    return row_parallel_linear


_ORDER = "libraries choose ring, tree or one-shot by message size, and each adds the ranks in its own order"

ALL_REDUCE = Task(
    name="all_reduce",
    summary="sum over the ranks of a group",
    overloads=(
        Overload(schema="all_reduce(Tensor x, str group='') -> Tensor", reference=all_reduce, fake=_fake_reduce),
    ),
    workloads=tuple(
        Workload(
            name=f"{model.lower()}-{phase}-{tokens}",
            axes={"tokens": tokens, "hidden": hidden},
            dtype="bfloat16",
            source=f"{model} self_attn.o_proj and mlp.down_proj under tensor parallelism",
            phase=phase,
        )
        for model, hidden in _HIDDEN.items()
        for phase, tokens in _phases()
    ),
    edge_workloads=(
        _edge("no-rows", tokens=0, hidden=576),
        _edge("one-row", tokens=1, hidden=576),
        _edge("odd-size", tokens=3, hidden=613),
        _edge("sliced", "sliced", tokens=5, hidden=576),
        _edge("float32", dtype="float32", tokens=5, hidden=576),
    ),
    make_inputs=_inputs_reduce,
    cost=_cost_reduce,
    tokens=_tokens,
    row_variance=_ORDER,
    rounding_freedom=_ORDER,
    world_size=2,
    mirrors=tuple(
        Mirror(
            engine=engine,
            target=f"{module}.communication_op:tensor_model_parallel_all_reduce",
            signature="(input_: torch.Tensor) -> torch.Tensor",
        )
        for engine, module in (("vllm", "vllm.distributed"), ("sglang", "sglang.srt.distributed"))
    ),
    baselines=(Baseline(name="torch.distributed.all_reduce", engine="torch", load=_torch_reduce),),
)

ROW_PARALLEL_LINEAR = Task(
    name="row_parallel_linear",
    summary="linear layer whose input columns are shared out over the ranks, with the sum over them",
    overloads=(
        Overload(
            schema="row_parallel_linear(Tensor x, Tensor weight, Tensor? bias=None, str group='') -> Tensor",
            reference=row_parallel_linear,
            fake=_fake_linear,
        ),
    ),
    workloads=tuple(
        Workload(
            name=f"llama-3.1-8b-{module.rsplit('.', 1)[1]}-{phase}-{tokens}",
            axes={"tokens": tokens, "k": k, "n": n},
            dtype="bfloat16",
            source=f"Llama-3.1-8B {module}",
            phase=phase,
            layout="no_bias",
        )
        for module, (k, n) in _LINEARS.items()
        for phase, tokens in _phases()
    ),
    edge_workloads=(
        _edge("no-rows", tokens=0, k=64, n=48),
        _edge("one-row", tokens=1, k=64, n=48),
        _edge("odd-size", tokens=3, k=840, n=61),
        _edge("no-bias", "no_bias", tokens=3, k=64, n=48),
        _edge("float32", dtype="float32", tokens=3, k=64, n=48),
    ),
    make_inputs=_inputs_linear,
    cost=_cost_linear,
    tokens=_tokens,
    row_variance=f"matrix libraries choose tiles by the number of rows; {_ORDER}",
    rounding_freedom=_ORDER,
    world_size=2,
    mirrors=(
        Mirror(
            engine="vllm",
            target="vllm.model_executor.layers.linear:RowParallelLinear.forward",
            signature="(self, input_) -> torch.Tensor | tuple[torch.Tensor, torch.nn.parameter.Parameter | None]",
        ),
        Mirror(
            engine="sglang",
            target="sglang.srt.layers.linear:RowParallelLinear.forward",
            signature="(self, input_, skip_all_reduce=False, forward_batch=None)",
        ),
    ),
    baselines=(Baseline(name="torch linear and all_reduce", engine="torch", load=_torch_linear),),
)
