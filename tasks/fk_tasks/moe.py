"""Mixture-of-experts matrix products.

Shape suffixes: R routed rows (tokens times experts per token), E experts, K input width, N output width.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from fk_plugin.task import Baseline, Cost, Mirror, Overload, Task, Workload

# (experts, experts per token, {projection: (input, output)}), gate and up side by side. Qwen3-30B-A3B config.json:
# hidden_size 2048, moe_intermediate_size 768, num_experts 128, num_experts_per_tok 8. granite-3.0-1b-a400m config.json:
# hidden_size 1024, intermediate_size 512, num_local_experts 32, num_experts_per_tok 8; small enough for a CPU.
_MODELS = {
    "Qwen3-30B-A3B": (128, 8, {"gate_up": (2048, 1536), "down": (768, 2048)}),
    "granite-3.0-1b-a400m": (32, 8, {"gate_up": (1024, 1024), "down": (512, 1024)}),
}
_DECODE_TOKENS = (1, 32, 256)
_PREFILL_TOKENS = (2048,)
# Real routers are skewed: zipf is the usual stand-in; one_expert is the worst balance there is.
_ROUTINGS = ("balanced", "zipf", "one_expert")


def grouped_gemm(x: torch.Tensor, weight: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Rows offsets[e - 1] to offsets[e] of x times weight[e] transposed, for every expert e.

    Args:
        x: [R, K], floating point, rows sorted by expert.
        weight: [E, N, K] of x's dtype, as engines hold w13 and w2.
        offsets: [E], int32, not decreasing: where each expert's rows end; the first starts at 0. An expert may have no
            row. Rows from offsets[E - 1] on belong to nobody.

    Returns: [R, N] of x's dtype, contiguous, accumulated in float32 at least; rows that belong to nobody are zero.
    """
    out_RN = x.new_zeros((x.shape[0], weight.shape[1]))
    start = 0
    for expert, end in enumerate(offsets.tolist()):
        if end > start:
            out_RN[start:end] = F.linear(x[start:end], weight[expert])
        start = end
    return out_RN


def _fake(x: torch.Tensor, weight: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    return x.new_empty((x.shape[0], weight.shape[1]))


def _tokens(x: torch.Tensor, *_: Any) -> int:
    return x.shape[0]


def _take_rows(args: tuple[Any, ...], start: int, stop: int) -> tuple[Any, ...]:
    x, weight, offsets = args
    return x[start:stop], weight, (offsets - start).clamp(0, stop - start).to(torch.int32)


def rows_per_expert(workload: Workload) -> list[int]:
    """How many rows each expert gets, largest first; the sum is the workload's rows without its padding."""
    axes = workload.axes
    rows, experts = axes["rows"] - axes.get("padded", 0), axes["experts"]
    if workload.layout == "one_expert":
        return [rows] + [0] * (experts - 1)
    shares = [1 / (i + 1) if workload.layout == "zipf" else 1.0 for i in range(experts)]
    counts = [int(rows * share / sum(shares)) for share in shares]
    for i in range(rows - sum(counts)):  # what rounding down left over goes to the largest
        counts[i % experts] += 1
    return counts


def _inputs(workload: Workload, device: str, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator(device).manual_seed(seed)
    axes, dtype = workload.axes, getattr(torch, workload.dtype)
    rows, width = axes["rows"], axes["k"]
    room = 2 * width if workload.layout == "sliced" else width
    x_RK = torch.randn((rows, room), generator=generator, device=device, dtype=dtype)[:, :width]
    shape = (axes["experts"], axes["n"], width)
    weight_ENK = torch.randn(shape, generator=generator, device=device, dtype=dtype).mul_(width**-0.5)
    order = torch.randperm(axes["experts"], generator=generator, device=device)
    counts_E = torch.tensor(rows_per_expert(workload), dtype=torch.int32, device=device)[order]
    return x_RK, weight_ENK, counts_E.cumsum(0, dtype=torch.int32)


def _cost(workload: Workload) -> Cost:
    counts, axes = rows_per_expert(workload), workload.axes
    width = torch.finfo(getattr(torch, workload.dtype)).bits // 8
    used = sum(1 for c in counts if c)
    # Rows in and out once, the weight of every expert that has rows once; a product and a sum per element and input.
    elements = sum(counts) * axes["k"] + axes["rows"] * axes["n"] + used * axes["n"] * axes["k"]
    return Cost(bytes=elements * width, flops=2 * sum(counts) * axes["n"] * axes["k"])


def _edge(name: str, rows: int, layout: str = "balanced", dtype: str = "bfloat16", **axes: int) -> Workload:
    sizes = {"rows": rows, "experts": 8, "k": 96, "n": 80, **axes}
    return Workload(name=f"edge-{name}", axes=sizes, dtype=dtype, source="edge case", phase="edge", layout=layout)


def _torch(device: str) -> Callable[..., Any]:
    return lambda x, weight, offsets: F.grouped_mm(x, weight.transpose(-2, -1), offs=offsets)


def _loop(device: str) -> Callable[..., Any]:
    return grouped_gemm


GROUPED_GEMM = Task(
    name="grouped_gemm",
    summary="one matrix product per expert over rows sorted by expert",
    overloads=(
        Overload(
            schema="grouped_gemm(Tensor x, Tensor weight, Tensor offsets) -> Tensor", reference=grouped_gemm, fake=_fake
        ),
    ),
    workloads=tuple(
        Workload(
            name=f"{model.lower()}-{projection}-{routing}-{phase}-{tokens}",
            axes={"rows": tokens * per_token, "experts": experts, "k": k, "n": n},
            dtype="bfloat16",
            source=f"{model} mlp.experts {projection}",
            phase=phase,
            layout=routing,
        )
        for model, (experts, per_token, projections) in _MODELS.items()
        for projection, (k, n) in projections.items()
        for phase, counts in (("decode", _DECODE_TOKENS), ("prefill", _PREFILL_TOKENS))
        for tokens in counts
        for routing in _ROUTINGS
    ),
    edge_workloads=(
        _edge("no-rows", 0),
        _edge("one-row", 1),
        _edge("odd-size", 61, k=103, n=77, experts=5),
        _edge("zipf", 130, "zipf"),
        _edge("one-expert-takes-all", 70, "one_expert"),
        _edge("more-experts-than-rows", 5, experts=16),
        _edge("rows-of-nobody", 40, padded=9),
        _edge("all-rows-of-nobody", 4, padded=4),
        _edge("sliced", 40, "sliced"),
        _edge("float16", 40, dtype="float16"),
        _edge("float32", 40, dtype="float32"),
    ),
    make_inputs=_inputs,
    cost=_cost,
    tokens=_tokens,
    take_rows=_take_rows,
    row_variance="matrix libraries choose tiles and splits by how many rows an expert has",
    mirrors=(
        # The loop over experts inside it; with the activation and the second product around it.
        Mirror(
            engine="sglang",
            target="sglang.srt.layers.moe.fused_moe_native:moe_forward_native",
            signature="(layer: torch.nn.modules.module.Module, x: torch.Tensor, "
            "topk_output: sglang.srt.layers.moe.topk.StandardTopKOutput, "
            "moe_runner_config: sglang.srt.layers.moe.moe_runner.base.MoeRunnerConfig) -> torch.Tensor",
        ),
        Mirror(
            engine="torch",
            target="torch.nn.functional:grouped_mm",
            signature="(mat_a: torch.Tensor, mat_b: torch.Tensor, *, offs: Optional[torch.Tensor] = None, "
            "bias: Optional[torch.Tensor] = None, out_dtype: Optional[torch.dtype] = None) -> torch.Tensor",
        ),
    ),
    baselines=(
        Baseline(name="torch.grouped_mm", engine="torch", load=_torch),
        Baseline(name="loop over experts", engine="torch", load=_loop),
    ),
)
