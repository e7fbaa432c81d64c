"""Softmax over a wide last axis.

Shape suffixes: T tokens (any leading shape), V vocabulary.
"""

from collections.abc import Callable
from typing import Any

import torch

from fk_plugin.task import Baseline, Cost, Mirror, Overload, Task, Workload

# `vocab_size` of each model's published config.json. Samplers see one row per running sequence, whatever the phase;
# prompt log-probabilities see one per prompt token.
_VOCABULARY = {"SmolLM2-135M": 49152, "Llama-3.1-8B": 128256, "Qwen3-30B-A3B": 151936}
_DECODE_TOKENS = (1, 8, 32, 128, 256)
_PREFILL_TOKENS = (512,)


def softmax(x: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """exp(x - max) / sum(exp(x - max)) over the last axis.

    Args:
        x: [..., V], floating point, any strides. Minus infinity gives 0; a row of minus infinities only, or with a NaN
            or plus infinity in it, is NaN throughout.
        dtype: of the result and of the arithmetic; None is x's (half-precision types still compute in float32).

    Returns: [..., V], contiguous.
    """
    return torch.softmax(x, dim=-1, dtype=dtype).contiguous()


def _softmax_out(x: torch.Tensor, dtype: torch.dtype | None = None, *, out: torch.Tensor) -> None:
    out.copy_(softmax(x, dtype))


def _fake(x: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    return x.new_empty(x.shape, dtype=dtype or x.dtype)


def _fake_out(x: torch.Tensor, dtype: torch.dtype | None = None, *, out: torch.Tensor) -> None:
    return None


def _oracle(x: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.softmax(x, dim=-1)


def _tokens(x: torch.Tensor, *_: Any) -> int:
    return x.numel() // x.shape[-1]


def _inputs(workload: Workload, device: str, seed: int) -> tuple[torch.Tensor, torch.dtype | None]:
    """Logits as models give them: a broad background and a few candidates 10 to 20 above it."""
    generator = torch.Generator(device).manual_seed(seed)
    rows, width, layout = workload.axes["tokens"], workload.axes["vocabulary"], workload.layout
    room = 2 * width + 8 if layout in ("sliced", "strided") else width
    x_TV = torch.randn((rows, room), generator=generator, device=device) * 2
    spots = torch.randint(0, room, (rows, 16), generator=generator, device=device)
    x_TV.scatter_(1, spots, 10 + 10 * torch.rand((rows, 16), generator=generator, device=device))
    if layout == "large":  # e^x of every row's largest overflows unless it is subtracted first
        x_TV += 90
    if layout == "masked":  # what top-k leaves: everything below the largest few is minus infinity
        keep = x_TV.topk(min(50, width), dim=-1).values[:, -1:]
        x_TV.masked_fill_(x_TV < keep, -torch.inf)
    if layout == "masked_tail":  # whole blocks of nothing but minus infinity, as padded vocabularies have
        x_TV[:, 100:] = -torch.inf
    x_TV = x_TV.to(getattr(torch, workload.dtype))
    if layout == "sliced":
        x_TV = x_TV[:, 8 : 8 + width]
    elif layout == "strided":
        x_TV = x_TV[:, : 2 * width : 2]
    elif layout == "transposed":
        x_TV = x_TV.t().contiguous().t()
    return x_TV, None if layout == "same_dtype" else torch.float32


def _cost(workload: Workload) -> Cost:
    elements = workload.axes["tokens"] * workload.axes["vocabulary"]
    width = torch.finfo(getattr(torch, workload.dtype)).bits // 8
    # One read and one float32 write per element; compare, subtract, exp, add, divide.
    return Cost(bytes=elements * (width + 4), flops=5 * elements)


_EDGES = (
    ("no-rows", {"tokens": 0, "vocabulary": 4096}, "contiguous", "float32"),
    ("one-row", {"tokens": 1, "vocabulary": 128256}, "contiguous", "float32"),
    ("odd-size", {"tokens": 3, "vocabulary": 50257}, "contiguous", "bfloat16"),
    ("one-column", {"tokens": 5, "vocabulary": 1}, "contiguous", "float32"),
    ("below-block", {"tokens": 5, "vocabulary": 4095}, "contiguous", "float32"),
    ("above-block", {"tokens": 5, "vocabulary": 4097}, "contiguous", "float32"),
    ("masked", {"tokens": 7, "vocabulary": 32000}, "masked", "float32"),
    ("masked-tail", {"tokens": 3, "vocabulary": 32000}, "masked_tail", "float32"),
    ("transposed", {"tokens": 5, "vocabulary": 9999}, "transposed", "float32"),
    ("sliced", {"tokens": 5, "vocabulary": 9999}, "sliced", "float32"),
    ("strided", {"tokens": 5, "vocabulary": 9999}, "strided", "float32"),
    ("same-dtype", {"tokens": 5, "vocabulary": 32000}, "same_dtype", "bfloat16"),
    ("large", {"tokens": 5, "vocabulary": 9999}, "large", "float32"),
    ("float16", {"tokens": 5, "vocabulary": 32000}, "contiguous", "float16"),
)


def _torch(device: str) -> Callable[..., Any]:
    return lambda x, dtype=None: torch.softmax(x, dim=-1, dtype=dtype)


def _flashinfer(device: str) -> Callable[..., Any]:
    from flashinfer.sampling import softmax as run

    return lambda x, dtype=None: run(x.float().contiguous()).to(dtype or x.dtype)


SOFTMAX = Task(
    name="softmax",
    summary="softmax over a wide last axis, as samplers take it over the vocabulary",
    overloads=(
        Overload(schema="softmax(Tensor x, ScalarType? dtype=None) -> Tensor", reference=softmax, fake=_fake),
        Overload(
            schema="softmax.out(Tensor x, ScalarType? dtype=None, *, Tensor(a!) out) -> ()",
            reference=_softmax_out,
            fake=_fake_out,
        ),
    ),
    workloads=tuple(
        Workload(
            name=f"{model.lower()}-{phase}-{tokens}",
            axes={"tokens": tokens, "vocabulary": size},
            dtype="float32",
            source=f"{model} sampler over lm_head's logits",
            phase=phase,
        )
        for model, size in _VOCABULARY.items()
        for phase, counts in (("decode", _DECODE_TOKENS), ("prefill", _PREFILL_TOKENS))
        for tokens in counts
    ),
    edge_workloads=tuple(
        Workload(name=f"edge-{name}", axes=axes, dtype=dtype, source="edge case", phase="edge", layout=layout)
        for name, axes, layout, dtype in _EDGES
    ),
    make_inputs=_inputs,
    cost=_cost,
    tokens=_tokens,
    # Both engines' samplers write `logits.softmax(dim=-1, dtype=torch.float32)` in the body of a method that does more.
    mirrors=(
        Mirror(
            engine="torch",
            target="torch.nn.functional:softmax",
            signature="(input: torch.Tensor, dim: Optional[int] = None, _stacklevel: int = 3, "
            "dtype: Optional[int] = None) -> torch.Tensor",
        ),
    ),
    oracle=_oracle,
    baselines=(
        Baseline(name="torch.softmax", engine="torch", load=_torch),
        Baseline(name="flashinfer.sampling.softmax", engine="flashinfer", load=_flashinfer, devices=("cuda",)),
    ),
)
