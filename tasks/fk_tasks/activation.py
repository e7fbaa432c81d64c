"""Gated activations.

Shape suffixes: T tokens (any leading shape), D half of the input's last axis.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from fk_plugin.task import Baseline, Cost, Mirror, Overload, Task, Workload
from fk_tasks import _regions

# Gate and up projections are stored side by side, so the operator's input is twice the intermediate size wide.
# Source of the sizes: `intermediate_size` in each model's published config.json.
_INTERMEDIATE = {"SmolLM2-135M": 1536, "Llama-3.1-8B": 14336}
_DECODE_TOKENS = (1, 8, 32, 128, 256)
_PREFILL_TOKENS = (512, 2048, 8192)


def silu_and_mul(x: torch.Tensor, round_activation: bool = True) -> torch.Tensor:
    """silu(x[..., :D]) * x[..., D:].

    Args:
        x: [..., 2 D], floating point; the last axis has stride 1.
        round_activation: round silu(gate) to x's dtype before the product, as both engines' PyTorch code does;
            False keeps it in float32 and rounds the product once, as FlashInfer's kernel (SGLang on CUDA) does.

    Returns: [..., D] of x's dtype, contiguous.
    """
    half = x.shape[-1] // 2
    gate, up = x[..., :half], x[..., half:]
    if round_activation:
        return F.silu(gate) * up
    return (F.silu(gate.float()) * up.float()).to(x.dtype)


def _silu_and_mul_out(x: torch.Tensor, round_activation: bool = True, *, out: torch.Tensor) -> None:
    out.copy_(silu_and_mul(x, round_activation))


def _fake(x: torch.Tensor, round_activation: bool = True) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], x.shape[-1] // 2))


def _fake_out(x: torch.Tensor, round_activation: bool = True, *, out: torch.Tensor) -> None:
    return None


def _tokens(x: torch.Tensor, *_: object) -> int:
    return x.numel() // x.shape[-1]


def _inputs(workload: Workload, device: str, seed: int) -> tuple[torch.Tensor, bool]:
    generator = torch.Generator(device).manual_seed(seed)
    tokens, width, layout = workload.axes["tokens"], 2 * workload.axes["intermediate"], workload.layout
    room = 2 * width + 8 if layout in ("sliced", "strided") else width
    x_T2D = torch.randn((tokens, room), generator=generator, device=device, dtype=torch.float32)
    if layout == "large":  # gates of 60 either side, where e^x is far from 1
        x_T2D *= 15
    x_T2D = x_T2D.to(getattr(torch, workload.dtype))
    if layout == "sliced":
        x_T2D = x_T2D[:, 8 : 8 + width]
    elif layout == "strided":
        x_T2D = x_T2D[:, : 2 * width : 2]
    elif layout == "three_axes":
        x_T2D = x_T2D.view(1, tokens, width)
    return x_T2D, layout != "rounded_once"


def _cost(workload: Workload) -> Cost:
    elements = workload.axes["tokens"] * workload.axes["intermediate"]
    width = torch.finfo(getattr(torch, workload.dtype)).bits // 8
    # Two inputs read and one output written per element; exp, add, divide and two products.
    return Cost(bytes=3 * elements * width, flops=5 * elements)


def _oracle(x: torch.Tensor, round_activation: bool = True) -> torch.Tensor:
    half = x.shape[-1] // 2
    return x[..., :half] * torch.sigmoid(x[..., :half]) * x[..., half:]


_EDGES = (
    ("no-rows", 0, 1536, "contiguous", "bfloat16"),
    ("one-row", 1, 14336, "contiguous", "bfloat16"),
    ("odd-size", 3, 77, "contiguous", "bfloat16"),
    ("one-column", 5, 1, "contiguous", "float32"),
    ("above-block", 2, 1025, "contiguous", "float16"),
    ("float32", 7, 512, "contiguous", "float32"),
    ("sliced", 5, 130, "sliced", "bfloat16"),
    ("strided", 6, 130, "strided", "bfloat16"),
    ("three-axes", 5, 128, "three_axes", "bfloat16"),
    ("large", 5, 512, "large", "bfloat16"),
    ("rounded-once", 33, 512, "rounded_once", "bfloat16"),
)


def _vllm(device: str) -> Callable[..., Any]:
    from vllm import _custom_ops  # noqa: F401  registers the operators

    run = torch.ops._C.silu_and_mul

    def call(x: torch.Tensor, round_activation: bool = True) -> torch.Tensor:
        out = torch.empty((*x.shape[:-1], x.shape[-1] // 2), dtype=x.dtype, device=x.device)
        run(out, x)
        return out

    return call


def _sglang(device: str) -> Callable[..., Any]:
    from sgl_kernel import silu_and_mul as run

    return lambda x, round_activation=True: run(x)


def _flashinfer(device: str) -> Callable[..., Any]:
    from flashinfer.activation import silu_and_mul as run

    return lambda x, round_activation=True: run(x)


_SIGNATURE = "(self, x: torch.Tensor) -> torch.Tensor"

SILU_AND_MUL = Task(
    name="silu_and_mul",
    summary="SwiGLU activation: silu of the first half of the last axis times the second half",
    overloads=(
        Overload(
            schema="silu_and_mul(Tensor x, bool round_activation=True) -> Tensor", reference=silu_and_mul, fake=_fake
        ),
        Overload(
            schema="silu_and_mul.out(Tensor x, bool round_activation=True, *, Tensor(a!) out) -> ()",
            reference=_silu_and_mul_out,
            fake=_fake_out,
        ),
    ),
    workloads=tuple(
        Workload(
            name=f"{model.lower()}-{phase}-{tokens}",
            axes={"tokens": tokens, "intermediate": size},
            dtype="bfloat16",
            source=f"{model} mlp.act_fn",
            phase=phase,
        )
        for model, size in _INTERMEDIATE.items()
        for phase, counts in (("decode", _DECODE_TOKENS), ("prefill", _PREFILL_TOKENS))
        for tokens in counts
    ),
    edge_workloads=tuple(
        Workload(
            name=f"edge-{name}",
            axes={"tokens": tokens, "intermediate": size},
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
        Baseline(name="vllm._C.silu_and_mul", engine="vllm", load=_vllm),
        Baseline(name="sgl_kernel.silu_and_mul", engine="sglang", load=_sglang, devices=("cuda",)),
        Baseline(name="flashinfer.silu_and_mul", engine="flashinfer", load=_flashinfer, devices=("cuda",)),
    ),
    region=_regions.GATED,
    mirrors=(
        Mirror(
            engine="vllm",
            target="vllm.model_executor.layers.activation:SiluAndMul.forward_native",
            signature="(x: torch.Tensor) -> torch.Tensor",
            arguments={"round_activation": True},
        ),
        Mirror(
            engine="vllm",
            target="vllm.model_executor.layers.activation:SiluAndMul.forward_cuda",
            signature=_SIGNATURE,
            arguments={"round_activation": True},
        ),
        Mirror(
            engine="sglang",
            target="sglang.srt.layers.activation:SiluAndMul.forward_native",
            signature=_SIGNATURE,
            arguments={"round_activation": True},
        ),
        Mirror(
            engine="sglang",
            target="sglang.srt.layers.activation:SiluAndMul.forward_cuda",
            signature=_SIGNATURE,
            arguments={"round_activation": False},
        ),
    ),
)
