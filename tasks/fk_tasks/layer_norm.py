"""Layer norm.

Shape suffixes: T tokens (any leading shape), D hidden size (the normalised axis).

One rounding order is in use: everything in float32, one rounding to x's dtype at the end. What differs between the
engines is the dtype of weight and bias alone: float32 in vLLM's LayerNorm, chosen by the model in SGLang's.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from fk_plugin.task import Baseline, Cost, Mirror, Overload, Task, Workload
from fk_tasks import _regions

# Hidden size and eps of each model's published config.json: n_embd and layer_norm_epsilon (GPT-2), hidden_size and
# layer_norm_eps (Phi-2), index_head_dim (DeepSeek-V3.2, whose indexer norms its keys). SmolLM2 and Llama use the
# root-mean-square norm; their sizes are here so that the norms can be compared with each other.
_MODELS = {
    "SmolLM2-135M": (576, 1e-5, "the model's size; the model itself uses rms_norm"),
    "Llama-3.1-8B": (4096, 1e-5, "the model's size; the model itself uses rms_norm"),
    "GPT-2": (768, 1e-5, "h.ln_1"),
    "Phi-2": (2560, 1e-5, "input_layernorm"),
    "DeepSeek-V3.2": (128, 1e-6, "self_attn.indexer.k_norm"),
}
_DECODE_TOKENS = (1, 8, 32, 128, 256)
_PREFILL_TOKENS = (512, 2048, 8192)


def layer_norm(x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float) -> torch.Tensor:
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last axis, the variance with divisor D.

    Args:
        x: [..., D], float32, float16 or bfloat16, any strides.
        weight: [D], of x's dtype or wider; None multiplies by nothing.
        bias: [D], of weight's dtype; None adds nothing.
        eps: added to the variance.

    Returns: [..., D] of x's dtype, contiguous.

    A weight narrower than x is taken as SGLang takes it: x is rounded to its dtype first.
    """
    holder = weight if weight is not None else bias
    dtype = torch.float32 if holder is None else holder.dtype
    return F.layer_norm(x.to(dtype), x.shape[-1:], weight, bias, eps).to(x.dtype).contiguous()


def _out(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float, *, out: torch.Tensor
) -> None:
    out.copy_(layer_norm(x, weight, bias, eps))


def _fake(x: torch.Tensor, *_: Any) -> torch.Tensor:
    return x.new_empty(x.shape)


def _fake_out(x: torch.Tensor, *_: Any, out: torch.Tensor) -> None:
    return None


def _oracle(x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float) -> torch.Tensor:
    centred_TD = x - x.mean(dim=-1, keepdim=True)
    out_TD = centred_TD / torch.sqrt(centred_TD.square().mean(dim=-1, keepdim=True) + eps)
    out_TD = out_TD if weight is None else out_TD * weight
    return out_TD if bias is None else out_TD + bias


def _tokens(x: torch.Tensor, *_: Any) -> int:
    return x.numel() // x.shape[-1]


def _activations(workload: Workload, generator: torch.Generator) -> torch.Tensor:
    """Hidden states with a mean other than zero, and a few columns an order of magnitude above the rest."""
    rows, width, layout = workload.axes["tokens"], workload.axes["hidden"], workload.layout
    room = 2 * width + 8 if layout in ("sliced", "strided") else width
    x_TD = torch.randn((rows, room), generator=generator, device=generator.device) + 0.5
    x_TD[..., ::97] *= 20
    if layout == "large":  # within float16, but their squares are not
        x_TD *= 500
    if layout == "constant":  # no variance at all: eps alone keeps the quotient finite
        x_TD[:] = x_TD[:, :1]
    x_TD = x_TD.to(getattr(torch, workload.dtype))
    if layout == "sliced":
        return x_TD[:, 8 : 8 + width]
    if layout == "strided":
        return x_TD[:, : 2 * width : 2]
    if layout == "transposed":
        return x_TD.t().contiguous().t()
    return x_TD.view(1, rows, width) if layout == "three_axes" else x_TD


def _inputs(workload: Workload, device: str, seed: int) -> tuple[Any, ...]:
    generator = torch.Generator(device).manual_seed(seed)
    x_TD = _activations(workload, generator)
    width, layout = workload.axes["hidden"], workload.layout
    dtype = getattr(torch, workload.dtype) if layout == "same_dtype" else torch.float32
    weight_D = (1 + 0.2 * torch.randn(width, generator=generator, device=device)).to(dtype)
    bias_D = (0.3 * torch.randn(width, generator=generator, device=device)).to(dtype)
    eps = next((eps for model, (_, eps, _) in _MODELS.items() if workload.source.startswith(model)), 1e-5)
    return (
        x_TD,
        None if layout in ("no_weight", "plain") else weight_D,
        None if layout in ("no_bias", "plain") else bias_D,
        eps,
    )


def _cost(workload: Workload) -> Cost:
    hidden = workload.axes["hidden"]
    elements = workload.axes["tokens"] * hidden
    width = torch.finfo(getattr(torch, workload.dtype)).bits // 8
    # x read and written once, float32 weight and bias read once; add, subtract, square, add, scale, weight, bias.
    return Cost(bytes=2 * elements * width + 2 * hidden * 4, flops=7 * elements)


_EDGES = (
    ("no-rows", 0, 576, "contiguous", "bfloat16"),
    ("one-row", 1, 4096, "contiguous", "bfloat16"),
    ("odd-size", 7, 613, "contiguous", "bfloat16"),
    ("one-column", 5, 1, "contiguous", "float32"),
    ("wide", 3, 18432, "contiguous", "bfloat16"),
    ("sliced", 33, 576, "sliced", "bfloat16"),
    ("strided", 9, 576, "strided", "bfloat16"),
    ("transposed", 9, 576, "transposed", "bfloat16"),
    ("three-axes", 9, 576, "three_axes", "bfloat16"),
    ("same-dtype", 9, 576, "same_dtype", "bfloat16"),
    ("no-weight", 9, 576, "no_weight", "bfloat16"),
    ("no-bias", 9, 576, "no_bias", "bfloat16"),
    ("plain", 9, 576, "plain", "bfloat16"),
    ("large", 9, 576, "large", "float16"),
    ("constant-rows", 9, 576, "constant", "float32"),
    ("float16", 17, 576, "contiguous", "float16"),
    ("float32", 17, 576, "contiguous", "float32"),
)


def _torch(device: str) -> Callable[..., Any]:
    return layer_norm


def _flashinfer(device: str) -> Callable[..., Any]:
    from flashinfer.norm import layernorm

    def run(x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float) -> torch.Tensor:
        if x.dtype != torch.bfloat16 or weight is None or bias is None or weight.dtype != torch.float32:
            raise NotImplementedError("flashinfer.norm.layernorm takes a bfloat16 x with float32 weight and bias")
        return layernorm(x.reshape(-1, x.shape[-1]), weight, bias, eps).view(x.shape)

    return run


_ROW = "Tensor x, Tensor? weight, Tensor? bias, float eps"

LAYER_NORM = Task(
    name="layer_norm",
    summary="layer norm over the last axis, in float32 and rounded once",
    overloads=(
        Overload(schema=f"layer_norm({_ROW}) -> Tensor", reference=layer_norm, fake=_fake),
        Overload(schema=f"layer_norm.out({_ROW}, *, Tensor(a!) out) -> ()", reference=_out, fake=_fake_out),
    ),
    workloads=tuple(
        Workload(
            name=f"{model.lower()}-{phase}-{tokens}",
            axes={"tokens": tokens, "hidden": size},
            dtype="bfloat16",
            source=f"{model} {where}",
            phase=phase,
        )
        for model, (size, _, where) in _MODELS.items()
        for phase, counts in (("decode", _DECODE_TOKENS), ("prefill", _PREFILL_TOKENS))
        for tokens in counts
    ),
    edge_workloads=tuple(
        Workload(
            name=f"edge-{name}",
            axes={"tokens": tokens, "hidden": size},
            dtype=dtype,
            source="edge case",
            phase="edge",
            layout=layout,
        )
        for name, tokens, size, layout, dtype in _EDGES
    ),
    make_inputs=_inputs,
    cost=_cost,
    tokens=_tokens,
    oracle=_oracle,
    baselines=(
        Baseline(name="torch.layer_norm", engine="torch", load=_torch),
        Baseline(name="flashinfer.layernorm", engine="flashinfer", load=_flashinfer, devices=("cuda",)),
    ),
    region=_regions.EMBEDDED,
    mirrors=(
        Mirror(
            engine="vllm",
            target="vllm.model_executor.layers.layernorm:LayerNorm.forward",
            signature="(self, x: torch.Tensor)",
        ),
        *(
            Mirror(
                engine="sglang",
                target=f"sglang.srt.layers.layernorm:LayerNorm.{method}",
                signature="(self, x: torch.Tensor) -> torch.Tensor",
            )
            for method in ("forward_native", "forward_cuda")
        ),
    ),
)
