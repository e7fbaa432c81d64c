"""The GELU-gated activation.

Shape suffixes: T tokens (any leading shape), D half of the input's last axis.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from fk_plugin.task import Baseline, Cost, Mirror, Overload, Task, Workload
from fk_tasks import _regions

# `intermediate_size` and the activation of each model's published config.json. SmolLM2 and Llama gate with silu; their
# sizes are here so that the gated activations can be compared with each other.
_MODELS = {
    "SmolLM2-135M": (1536, "tanh", "the model's size; the model itself gates with silu"),
    "Llama-3.1-8B": (14336, "none", "the model's size; the model itself gates with silu"),
    "Gemma-2-2B": (9216, "tanh", "mlp.act_fn, hidden_activation gelu_pytorch_tanh"),
}
_DECODE_TOKENS = (1, 8, 32, 128, 256)
_PREFILL_TOKENS = (512, 2048, 8192)


def gelu_and_mul(x: torch.Tensor, approximate: str = "none", round_activation: bool = True) -> torch.Tensor:
    """gelu(x[..., :D]) * x[..., D:].

    Args:
        x: [..., 2 D], float32, float16 or bfloat16, any strides.
        approximate: "none" is g Phi(g) with the normal distribution Phi; "tanh" is
            g / 2 (1 + tanh(sqrt(2 / pi) (g + 0.044715 g^3))).
        round_activation: round gelu(gate) to x's dtype before the product, as both engines' PyTorch code does; False
            keeps it in float32 and rounds the product once, as FlashInfer's kernel (SGLang on CUDA) does.

    Returns: [..., D] of x's dtype, contiguous.

    Raises:
        RuntimeError: `approximate` is neither (torch says so).
    """
    half = x.shape[-1] // 2
    gate, up = x[..., :half], x[..., half:]
    if round_activation:
        product = F.gelu(gate, approximate=approximate) * up
    else:
        product = (F.gelu(gate.float(), approximate=approximate) * up.float()).to(x.dtype)
    return product.contiguous()


def _out(x: torch.Tensor, approximate: str = "none", round_activation: bool = True, *, out: torch.Tensor) -> None:
    out.copy_(gelu_and_mul(x, approximate, round_activation))


def _fake(x: torch.Tensor, approximate: str = "none", round_activation: bool = True) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], x.shape[-1] // 2))


def _fake_out(x: torch.Tensor, *_: Any, out: torch.Tensor) -> None:
    return None


def _oracle(x: torch.Tensor, approximate: str = "none", round_activation: bool = True) -> torch.Tensor:
    """Written with erfc and sigmoid, which do not cancel for gates far below zero."""
    half = x.shape[-1] // 2
    gate, up = x[..., :half], x[..., half:]
    if approximate == "tanh":
        return gate * torch.sigmoid((8 / torch.pi) ** 0.5 * (gate + 0.044715 * gate**3)) * up
    return gate * torch.special.erfc(-gate / 2**0.5) / 2 * up


def _tokens(x: torch.Tensor, *_: object) -> int:
    return x.numel() // x.shape[-1]


def _inputs(workload: Workload, device: str, seed: int) -> tuple[torch.Tensor, str, bool]:
    generator = torch.Generator(device).manual_seed(seed)
    tokens, width, layout = workload.axes["tokens"], 2 * workload.axes["intermediate"], workload.layout
    room = 2 * width + 8 if layout in ("sliced", "strided") else width
    x_T2D = torch.randn((tokens, room), generator=generator, device=device)
    if layout == "large":  # products near float16's largest number
        x_T2D *= 50
    x_T2D = x_T2D.to(getattr(torch, workload.dtype))
    if layout == "sliced":
        x_T2D = x_T2D[:, 8 : 8 + width]
    elif layout == "strided":
        x_T2D = x_T2D[:, : 2 * width : 2]
    elif layout == "three_axes":
        x_T2D = x_T2D.view(1, tokens, width)
    model = next((m for m in _MODELS if workload.source.startswith(m)), None)
    approximate = _MODELS[model][1] if model else "none" if workload.axes.get("exact", 1) else "tanh"
    return x_T2D, approximate, layout != "rounded_once"


def _cost(workload: Workload) -> Cost:
    elements = workload.axes["tokens"] * workload.axes["intermediate"]
    width = torch.finfo(getattr(torch, workload.dtype)).bits // 8
    # Two inputs read and one output written per element; a cubic or a quotient, exp, add, divide and two products.
    return Cost(bytes=3 * elements * width, flops=8 * elements)


_EDGES = (
    ("no-rows", 0, 1536, "contiguous", "bfloat16"),
    ("one-row", 1, 14336, "contiguous", "bfloat16"),
    ("odd-size", 13, 77, "contiguous", "bfloat16"),
    ("one-column", 5, 1, "contiguous", "float32"),
    ("above-block", 2, 1025, "contiguous", "float16"),
    ("float32", 7, 512, "contiguous", "float32"),
    ("sliced", 5, 130, "sliced", "bfloat16"),
    ("strided", 6, 130, "strided", "bfloat16"),
    ("three-axes", 5, 128, "three_axes", "bfloat16"),
    ("large", 5, 256, "large", "float16"),
    ("rounded-once", 33, 512, "rounded_once", "bfloat16"),
)


def _edges() -> tuple[Workload, ...]:
    """Every edge in both forms; the tanh form carries it in its name."""
    return tuple(
        Workload(
            name=f"edge-{name}{'' if exact else '-tanh'}",
            axes={"tokens": tokens, "intermediate": size, "exact": exact},
            dtype=dtype,
            source="edge case",
            phase="edge",
            layout=layout,
        )
        for name, tokens, size, layout, dtype in _EDGES
        for exact in (1, 0)
    )


def _vllm(device: str) -> Callable[..., Any]:
    from vllm import _custom_ops  # noqa: F401  registers the operators

    runs = {"none": torch.ops._C.gelu_and_mul, "tanh": torch.ops._C.gelu_tanh_and_mul}

    def call(x: torch.Tensor, approximate: str = "none", round_activation: bool = True) -> torch.Tensor:
        out = torch.empty((*x.shape[:-1], x.shape[-1] // 2), dtype=x.dtype, device=x.device)
        runs[approximate](out, x)
        return out

    return call


def _sglang(device: str) -> Callable[..., Any]:
    from sgl_kernel import gelu_and_mul, gelu_tanh_and_mul

    runs = {"none": gelu_and_mul, "tanh": gelu_tanh_and_mul}
    return lambda x, approximate="none", round_activation=True: runs[approximate](x)


def _flashinfer(device: str) -> Callable[..., Any]:
    from flashinfer.activation import gelu_and_mul, gelu_tanh_and_mul

    runs = {"none": gelu_and_mul, "tanh": gelu_tanh_and_mul}
    return lambda x, approximate="none", round_activation=True: runs[approximate](x)


_FORM = "Tensor x, str approximate='none', bool round_activation=True"

GELU_AND_MUL = Task(
    name="gelu_and_mul",
    summary="GeGLU activation: gelu of the first half of the last axis times the second half",
    overloads=(
        Overload(schema=f"gelu_and_mul({_FORM}) -> Tensor", reference=gelu_and_mul, fake=_fake),
        Overload(schema=f"gelu_and_mul.out({_FORM}, *, Tensor(a!) out) -> ()", reference=_out, fake=_fake_out),
    ),
    workloads=tuple(
        Workload(
            name=f"{model.lower()}-{phase}-{tokens}",
            axes={"tokens": tokens, "intermediate": size},
            dtype="bfloat16",
            source=f"{model} {where}",
            phase=phase,
        )
        for model, (size, _, where) in _MODELS.items()
        for phase, counts in (("decode", _DECODE_TOKENS), ("prefill", _PREFILL_TOKENS))
        for tokens in counts
    ),
    edge_workloads=_edges(),
    make_inputs=_inputs,
    cost=_cost,
    tokens=_tokens,
    oracle=_oracle,
    baselines=(
        Baseline(name="vllm._C.gelu_and_mul", engine="vllm", load=_vllm),
        Baseline(name="sgl_kernel.gelu_and_mul", engine="sglang", load=_sglang, devices=("cuda",)),
        Baseline(name="flashinfer.gelu_and_mul", engine="flashinfer", load=_flashinfer, devices=("cuda",)),
    ),
    region=_regions.GATED,
    # Both classes hold `approximate` as an attribute; the adapter passes it on.
    mirrors=tuple(
        Mirror(
            engine=engine,
            target=f"{module}:GeluAndMul.{method}",
            signature="(self, x: torch.Tensor) -> torch.Tensor",
            arguments={"round_activation": rounds},
        )
        for engine, module, method, rounds in (
            ("vllm", "vllm.model_executor.layers.activation", "forward_native", True),
            ("vllm", "vllm.model_executor.layers.activation", "forward_cuda", True),
            ("sglang", "sglang.srt.layers.activation", "forward_native", True),
            ("sglang", "sglang.srt.layers.activation", "forward_cuda", False),
        )
    ),
)
