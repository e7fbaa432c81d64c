"""Shapes, layouts and values that the norms are judged and measured on.

Shape suffixes: T tokens, H heads, D hidden size.
"""

from typing import Any

import torch

from fk_plugin.task import Cost, Workload

# `hidden_size` and `rms_norm_eps` of each model's published config.json.
_MODELS = {"SmolLM2-135M": (576, 1e-5), "Llama-3.1-8B": (4096, 1e-5), "Qwen3-30B-A3B": (2048, 1e-6)}
# Qwen3-30B-A3B config.json: num_attention_heads, num_key_value_heads, head_dim. Its q_norm reads a slice of the fused
# qkv projection without copying it.
_HEADS, _KV_HEADS, _HEAD_DIM = 32, 4, 128
_DECODE_TOKENS = (1, 8, 32, 128, 256)
_PREFILL_TOKENS = (512, 2048, 8192)


def _values(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Hidden states as models have them: a few columns are an order of magnitude above the rest."""
    values = torch.randn(shape, generator=generator, device=generator.device)
    values[..., ::97] *= 20
    return values


def _activations(workload: Workload, generator: torch.Generator) -> torch.Tensor:
    """[tokens, hidden], or [tokens, heads, hidden] where the workload has heads, laid out as `layout` says."""
    rows, width = workload.axes["tokens"], workload.axes["hidden"]
    dtype = getattr(torch, workload.dtype)
    heads = workload.axes.get("heads")
    if workload.layout == "sliced" and heads:  # the q part of a fused qkv projection
        qkv = _values((rows, (heads + 2 * _KV_HEADS) * width), generator).to(dtype)
        return qkv[:, : heads * width].view(rows, heads, width)
    if workload.layout == "sliced":
        return _values((rows, 2 * width + 8), generator).to(dtype)[:, 8 : 8 + width]
    if workload.layout == "strided":
        return _values((rows, 2 * width), generator).to(dtype)[:, ::2]
    if workload.layout == "transposed":
        return _values((rows, width), generator).to(dtype).t().contiguous().t()
    values = _values((rows, heads, width) if heads else (rows, width), generator)
    if workload.layout == "small":  # mean squares near eps, and a padded row of zeros
        values *= 1e-3
        values[0] = 0
    return values.to(dtype)


def _rest(workload: Workload, generator: torch.Generator) -> tuple[Any, ...]:
    """weight, eps, variance_size, rounding."""
    width, layout = workload.axes["hidden"], workload.layout
    dtype = torch.float32 if layout == "wide_weight" else getattr(torch, workload.dtype)
    weight_D = (1 + 0.2 * torch.randn(width, generator=generator, device=generator.device)).to(dtype)
    eps = next((eps for model, (_, eps) in _MODELS.items() if workload.source.startswith(model)), 1e-6)
    rounding = layout.removeprefix("rounding_") if layout.startswith("rounding_") else "weight"
    return None if layout == "no_weight" else weight_D, eps, workload.axes.get("variance_size"), rounding


def inputs(workload: Workload, device: str, seed: int) -> tuple[Any, ...]:
    generator = torch.Generator(device).manual_seed(seed)
    return _activations(workload, generator), *_rest(workload, generator)


def inputs_add(workload: Workload, device: str, seed: int) -> tuple[Any, ...]:
    generator = torch.Generator(device).manual_seed(seed)
    x_TD = _activations(workload, generator)
    residual_TD = _activations(workload, generator)
    if workload.layout == "aliased":  # both are views of one buffer, side by side
        x_TD, residual_TD = torch.cat((x_TD, residual_TD), dim=-1).chunk(2, dim=-1)
    return x_TD, residual_TD, *_rest(workload, generator)


def cost(workload: Workload, tensors: int) -> Cost:
    elements = workload.axes["tokens"] * workload.axes.get("heads", 1) * workload.axes["hidden"]
    width = torch.finfo(getattr(torch, workload.dtype)).bits // 8
    # Every tensor once, the weight once; square, add, scale and weight per element, one more add with a residual.
    return Cost(bytes=(tensors * elements + workload.axes["hidden"]) * width, flops=(3 + tensors // 2) * elements)


def workloads(with_heads: bool) -> tuple[Workload, ...]:
    phases = [("decode", t) for t in _DECODE_TOKENS] + [("prefill", t) for t in _PREFILL_TOKENS]
    found = [
        Workload(
            name=f"{model.lower()}-{phase}-{tokens}",
            axes={"tokens": tokens, "hidden": hidden},
            dtype="bfloat16",
            source=f"{model} post_attention_layernorm",
            phase=phase,
        )
        for model, (hidden, _) in _MODELS.items()
        for phase, tokens in phases
    ]
    if with_heads:
        found += [
            Workload(
                name=f"qwen3-30b-a3b-q_norm-{phase}-{tokens}",
                axes={"tokens": tokens, "heads": _HEADS, "hidden": _HEAD_DIM},
                dtype="bfloat16",
                source="Qwen3-30B-A3B self_attn.q_norm",
                phase=phase,
                layout="sliced",
            )
            for phase, tokens in (("decode", 8), ("decode", 256), ("prefill", 2048))
        ]
    return tuple(found)


# (name, axes, layout, dtype): shapes and layouts that users' reports name as broken somewhere.
_EDGES: tuple[tuple[str, dict[str, int], str, str], ...] = (
    ("no-rows", {"tokens": 0, "hidden": 576}, "contiguous", "bfloat16"),
    ("one-row", {"tokens": 1, "hidden": 4096}, "contiguous", "bfloat16"),
    ("odd-size", {"tokens": 7, "hidden": 613}, "contiguous", "bfloat16"),
    ("one-column", {"tokens": 5, "hidden": 1}, "contiguous", "float32"),
    ("wide", {"tokens": 3, "hidden": 18432}, "contiguous", "bfloat16"),
    ("hidden-3072", {"tokens": 65, "hidden": 3072}, "contiguous", "bfloat16"),
    ("hidden-7168", {"tokens": 513, "hidden": 7168}, "contiguous", "bfloat16"),
    ("sliced", {"tokens": 33, "hidden": 576}, "sliced", "bfloat16"),
    ("strided", {"tokens": 9, "hidden": 576}, "strided", "bfloat16"),
    ("transposed", {"tokens": 9, "hidden": 576}, "transposed", "bfloat16"),
    ("wide-weight", {"tokens": 9, "hidden": 576}, "wide_weight", "bfloat16"),
    ("no-weight", {"tokens": 9, "hidden": 576}, "no_weight", "bfloat16"),
    ("rounding-once", {"tokens": 9, "hidden": 576}, "rounding_once", "bfloat16"),
    ("rounding-input", {"tokens": 9, "hidden": 576}, "rounding_input", "bfloat16"),
    ("part-variance", {"tokens": 9, "hidden": 576, "variance_size": 500}, "contiguous", "bfloat16"),
    ("small", {"tokens": 9, "hidden": 576}, "small", "bfloat16"),
    ("float16", {"tokens": 17, "hidden": 576}, "contiguous", "float16"),
    ("float32", {"tokens": 17, "hidden": 576}, "contiguous", "float32"),
)


def edges(extra: tuple[str, dict[str, int], str, str]) -> tuple[Workload, ...]:
    """The edge workloads that every norm has, and one of its own."""
    return tuple(
        Workload(name=f"edge-{name}", axes=axes, dtype=dtype, source="edge case", phase="edge", layout=layout)
        for name, axes, layout, dtype in (*_EDGES, extra)
    )
