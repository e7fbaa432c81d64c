"""Shapes, layouts and values that the rotary operators are judged and measured on.

Shape suffixes: T tokens, P positions, R rotated dimensions of a head.
"""

from dataclasses import dataclass
from typing import Any

import torch

from fk_plugin.task import Workload

DECODE_TOKENS = (1, 8, 32, 128, 256)
PREFILL_TOKENS = (512, 2048, 8192)


@dataclass(frozen=True, kw_only=True)
class Model:
    """What a model's published config.json says: heads, head size, rotated dimensions, base, style, positions.

    `positions` is the number of rows of the cosine and sine table, at most 8,192 here: a step reads one row per token,
    and a longer table would only make the float64 oracle slow.
    """

    q_heads: int
    kv_heads: int
    head_size: int
    rotary: int
    base: float
    neox: bool = True
    positions: int = 8192


MODELS = {
    "SmolLM2-135M": Model(q_heads=9, kv_heads=3, head_size=64, rotary=64, base=1e5),
    "Llama-3.1-8B": Model(q_heads=32, kv_heads=8, head_size=128, rotary=128, base=5e5),
    # partial_rotary_factor 0.4
    "Phi-2": Model(q_heads=32, kv_heads=32, head_size=80, rotary=32, base=1e4, positions=2048),
    # n_head 16 of n_embd 4096, rotary_dim 64; interleaved pairs (modeling_gptj.py)
    "GPT-J-6B": Model(q_heads=16, kv_heads=16, head_size=256, rotary=64, base=1e4, neox=False, positions=2048),
}


def workloads(names: tuple[str, ...] = tuple(MODELS)) -> tuple[Workload, ...]:
    """The models' shapes; query, key and value are slices of the fused projection, as both engines pass them.

    Workloads with "float32-table" in their name are SGLang's on CUDA: a float32 table and one rounding.
    """
    kinds = [(name, "", "sliced") for name in names] + [("Llama-3.1-8B", "float32-table-", "float32_table")]
    return tuple(
        Workload(
            name=f"{name.lower()}-{mark}{phase}-{tokens}",
            axes=_axes(MODELS[name], tokens),
            dtype="bfloat16",
            source=f"{name} self_attn.rotary_emb",
            phase=phase,
            layout=layout,
        )
        for name, mark, layout in kinds
        for phase, counts in (("decode", DECODE_TOKENS), ("prefill", PREFILL_TOKENS))
        for tokens in counts
    )


def _axes(model: Model, tokens: int) -> dict[str, int]:
    return {
        "tokens": tokens,
        "q_heads": model.q_heads,
        "kv_heads": model.kv_heads,
        "head_size": model.head_size,
        "rotary": model.rotary,
        "positions": model.positions,
        "neox": int(model.neox),
        "base": int(model.base),
    }


def edge(name: str, tokens: int, layout: str = "sliced", dtype: str = "bfloat16", **axes: int) -> Workload:
    """An edge workload; sizes that `axes` does not name are those of a small model."""
    small = Model(q_heads=4, kv_heads=2, head_size=64, rotary=64, base=1e4, positions=512)
    return Workload(
        name=f"edge-{name}",
        axes=_axes(small, tokens) | axes,
        dtype=dtype,
        source="edge case",
        phase="edge",
        layout=layout,
    )


EDGES = (
    edge("no-rows", 0, "contiguous"),  # torch.library.opcheck cannot clone slices of an empty buffer
    edge("one-row", 1),
    edge("odd-size", 7, q_heads=9, kv_heads=3, head_size=80, rotary=34),
    edge("odd-heads", 5, q_heads=7, kv_heads=1),
    edge("one-pair", 5, head_size=2, rotary=2),
    edge("partial", 17, head_size=80, rotary=32),
    edge("interleaved", 17, neox=0),
    edge("interleaved-partial", 17, neox=0, head_size=80, rotary=32),
    edge("three-axes", 9, "three_axes"),
    edge("separate", 9, "contiguous"),
    edge("end-positions", 33, "end_positions"),
    edge("int32-positions", 9, "int32"),
    edge("large", 9, "large", "float16"),
    edge("rounded-once", 33, "rounded_once"),
    edge("float32-table", 33, "float32_table"),
    edge("float16", 17, dtype="float16"),
    edge("float32", 17, dtype="float32"),
)


def table(workload: Workload, generator: torch.Generator) -> torch.Tensor:
    """[P, R]: cosines of position times frequency in the first half of the columns, sines in the second.

    The model's base times a number between 1 and 2: a kernel that computes the table itself must not pass.
    """
    device = generator.device
    count, rotary, base = (workload.axes[n] for n in ("positions", "rotary", "base"))
    steps = torch.arange(0, rotary, 2, device=device, dtype=torch.float32) / rotary
    frequencies = (base * (1 + torch.rand((), generator=generator, device=device))) ** -steps
    angles = torch.outer(torch.arange(count, device=device, dtype=torch.float32), frequencies)
    table_PR = torch.cat((angles.cos(), angles.sin()), dim=-1)
    return table_PR if workload.layout == "float32_table" else table_PR.to(getattr(torch, workload.dtype))


def heads(workload: Workload, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
    """query [T, q_heads * head_size], key and value [T, kv_heads * head_size], laid out as `layout` says."""
    tokens, q_heads, kv_heads, size = (workload.axes[n] for n in ("tokens", "q_heads", "kv_heads", "head_size"))
    widths = [q_heads * size, kv_heads * size, kv_heads * size]
    qkv = torch.randn((tokens, sum(widths)), generator=generator, device=generator.device)
    if workload.layout == "large":  # near float16's largest number
        qkv *= 8000
    parts = qkv.to(getattr(torch, workload.dtype)).split(widths, dim=-1)
    if workload.layout == "contiguous":
        return tuple(part.clone(memory_format=torch.contiguous_format) for part in parts)
    if workload.layout == "three_axes":
        return tuple(part.view(tokens, -1, size) for part in parts)
    return parts


def positions(workload: Workload, generator: torch.Generator) -> torch.Tensor:
    """[T] in the order of requests in a batch: any, and for "end_positions" the first and the last alone."""
    tokens, count = workload.axes["tokens"], workload.axes["positions"]
    shape = (tokens,)
    if workload.layout == "end_positions":
        ends = torch.tensor([0, count - 1], device=generator.device)
        return ends[torch.randint(0, 2, shape, generator=generator, device=generator.device)]
    found = torch.randint(0, count, shape, generator=generator, device=generator.device)
    return found.to(torch.int32) if workload.layout == "int32" else found


def variants(workload: Workload) -> tuple[bool, bool]:
    """is_neox, round_products."""
    return bool(workload.axes["neox"]), workload.layout not in ("rounded_once", "float32_table")


def take_rows(rows: tuple[Any, ...], start: int, stop: int) -> tuple[Any, ...]:
    """Each tensor cut along its first axis."""
    return tuple(tensor[start:stop] for tensor in rows)
