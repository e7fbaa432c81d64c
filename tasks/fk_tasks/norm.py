"""Root-mean-square norms.

Shape suffixes: T tokens (any leading shape), H heads, D hidden size (the normalised axis).

Three rounding orders are in use, and in bfloat16 they differ in about a quarter of all elements, so the order is an
argument of the operator:
    "weight"  the normalised value is rounded to the weight's dtype, multiplied, rounded to x's dtype (vLLM)
    "once"    the product is taken in float32 and rounded once (SGLang, FlashInfer)
    "input"   the normalised value is rounded to x's dtype, then multiplied in the common dtype of x and weight, which
              is also the result's (SGLang with cast_x_before_out_mul, Transformers' LlamaRMSNorm)
"""

from typing import Any

import torch

from fk_plugin.task import Baseline, Mirror, Overload, Task
from fk_tasks import _norm_baselines as baselines
from fk_tasks import _norm_workloads as data
from fk_tasks import _regions

ROUNDINGS = ("weight", "once", "input")


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    variance_size: int | None = None,
    rounding: str = "weight",
) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis, computed in float32.

    Args:
        x: [..., D], float32, float16 or bfloat16, any strides.
        weight: [D], any of these dtypes; None multiplies by nothing.
        eps: added to the mean square.
        variance_size: take the mean over the first `variance_size` columns only.
        rounding: see the module.

    Returns: [..., D], contiguous, of x's dtype; for rounding "input" of the common dtype of x and weight.

    Raises:
        ValueError: unknown rounding.
    """
    return _normalise(x.to(torch.float32), weight, eps, variance_size, rounding, x.dtype)


def fused_add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    variance_size: int | None = None,
    rounding: str = "weight",
) -> None:
    """x becomes rms_norm(x + residual), residual becomes x + residual; the norm sees the unrounded float32 sum.

    Args:
        x, residual: [..., D] of the same shape and dtype, written; any strides, without overlap.
        weight, eps, variance_size, rounding: as for rms_norm.

    Not covered: a float32 residual beside a narrower x, or a third summand (SGLang's fp32_residual and
    post_residual_addition).

    Raises:
        ValueError: unknown rounding, or rounding "input" with a weight wider than x, whose result x cannot hold.
    """
    normed_TD, sum_TD = fused_add_rms_norm_returning(x, residual, weight, eps, variance_size, rounding)
    x.copy_(normed_TD)
    residual.copy_(sum_TD)


def fused_add_rms_norm_returning(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    variance_size: int | None = None,
    rounding: str = "weight",
) -> tuple[torch.Tensor, torch.Tensor]:
    """What fused_add_rms_norm writes into x and residual, as new contiguous tensors."""
    if _result_dtype(x, weight, rounding) != x.dtype:
        raise ValueError(f"rounding 'input' needs a weight no wider than x ({x.dtype}), got {weight.dtype}")
    sum_TD = x.to(torch.float32) + residual.to(torch.float32)
    normed_TD = _normalise(sum_TD, weight, eps, variance_size, rounding, x.dtype)
    return normed_TD, sum_TD.to(x.dtype).contiguous()


def _normalise(
    x_TD: torch.Tensor,
    weight_D: torch.Tensor | None,
    eps: float,
    variance_size: int | None,
    rounding: str,
    dtype: torch.dtype,
) -> torch.Tensor:
    if rounding not in ROUNDINGS:
        raise ValueError(f"rounding must be one of {ROUNDINGS}, got {rounding!r}")
    counted = x_TD if variance_size is None else x_TD[..., :variance_size]
    scale_T1 = torch.rsqrt(counted.pow(2).mean(dim=-1, keepdim=True) + eps)
    out_TD = x_TD * scale_T1
    if weight_D is None:
        out_TD = out_TD.to(dtype)
    elif rounding == "weight":
        out_TD = (out_TD.to(weight_D.dtype) * weight_D).to(dtype)
    elif rounding == "once":
        out_TD = (out_TD * weight_D).to(dtype)
    else:
        out_TD = out_TD.to(dtype) * weight_D
    return out_TD.contiguous()


def _rms_norm_out(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    variance_size: int | None = None,
    rounding: str = "weight",
    *,
    out: torch.Tensor,
) -> None:
    out.copy_(rms_norm(x, weight, eps, variance_size, rounding))


def _result_dtype(x: torch.Tensor, weight: torch.Tensor | None, rounding: str) -> torch.dtype:
    return torch.promote_types(x.dtype, weight.dtype) if rounding == "input" and weight is not None else x.dtype


def _fake(x: torch.Tensor, weight: torch.Tensor | None, eps: float, *rest: Any) -> torch.Tensor:
    rounding = rest[1] if len(rest) > 1 else "weight"
    return x.new_empty(x.shape, dtype=_result_dtype(x, weight, rounding))


def _fake_out(x: torch.Tensor, *_: Any, out: torch.Tensor) -> None:
    return None


def _fake_add(*_: Any) -> None:
    return None


def _fake_add_returning(x: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape)


def _oracle(
    x: torch.Tensor, weight: torch.Tensor | None, eps: float, variance_size: int | None = None, rounding: str = "weight"
) -> torch.Tensor:
    counted = x if variance_size is None else x[..., :variance_size]
    out_TD = x / torch.sqrt(counted.square().mean(dim=-1, keepdim=True) + eps)
    return out_TD if weight is None else out_TD * weight


def _oracle_add(x: torch.Tensor, residual: torch.Tensor, *rest: Any) -> None:
    residual.add_(x)
    x.copy_(_oracle(residual, *rest))


def _tokens(x: torch.Tensor, *_: Any) -> int:
    return x.numel() // x.shape[-1]


_ROW = "Tensor? weight, float eps, int? variance_size=None, str rounding='weight'"
_NATIVE = "(self, x: torch.Tensor, residual: torch.Tensor | None = None)"
_VLLM = f"{_NATIVE} -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]"
_SGLANG = (
    "(self, x: torch.Tensor, residual: Optional[torch.Tensor] = None, "
    "post_residual_addition: Optional[torch.Tensor] = None) "
    "-> Union[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]"
)
# SGLang's class computes "input" instead of "once" where a layer was built with cast_x_before_out_mul=True.
_MIRRORS = tuple(
    Mirror(engine=engine, target=f"{module}:RMSNorm.{method}", signature=signature, arguments={"rounding": rounding})
    for engine, module, signature, roundings in (
        ("vllm", "vllm.model_executor.layers.layernorm", _VLLM, ("weight",)),
        ("sglang", "sglang.srt.layers.layernorm", _SGLANG, ("once", "input")),
    )
    for method in ("forward_native", "forward_cuda")
    for rounding in roundings
)

RMS_NORM = Task(
    name="rms_norm",
    summary="root-mean-square norm over the last axis, in the rounding order of the call site",
    overloads=(
        Overload(schema=f"rms_norm(Tensor x, {_ROW}) -> Tensor", reference=rms_norm, fake=_fake),
        Overload(
            schema=f"rms_norm.out(Tensor x, {_ROW}, *, Tensor(a!) out) -> ()", reference=_rms_norm_out, fake=_fake_out
        ),
    ),
    workloads=data.workloads(with_heads=True),
    edge_workloads=data.edges(("qk-heads", {"tokens": 33, "heads": 32, "hidden": 128}, "sliced", "bfloat16")),
    make_inputs=data.inputs,
    cost=lambda workload: data.cost(workload, tensors=2),
    tokens=_tokens,
    mirrors=_MIRRORS,
    oracle=_oracle,
    baselines=(
        Baseline(name="vllm._C.rms_norm", engine="vllm", load=baselines.vllm),
        Baseline(name="sgl_kernel.rmsnorm", engine="sglang", load=baselines.sglang, devices=("cuda",)),
        Baseline(name="torch.rms_norm", engine="torch", load=baselines.torch_native),
    ),
    region=_regions.EMBEDDED,
)

FUSED_ADD_RMS_NORM = Task(
    name="fused_add_rms_norm",
    summary="residual add and root-mean-square norm in place, the variance from the unrounded sum",
    overloads=(
        Overload(
            schema=f"fused_add_rms_norm(Tensor(a!) x, Tensor(b!) residual, {_ROW}) -> ()",
            reference=fused_add_rms_norm,
            fake=_fake_add,
        ),
        Overload(
            schema=f"fused_add_rms_norm.returning(Tensor x, Tensor residual, {_ROW}) -> (Tensor, Tensor)",
            reference=fused_add_rms_norm_returning,
            fake=_fake_add_returning,
        ),
    ),
    workloads=data.workloads(with_heads=False),
    edge_workloads=data.edges(("aliased-residual", {"tokens": 33, "hidden": 576}, "aliased", "bfloat16")),
    make_inputs=data.inputs_add,
    cost=lambda workload: data.cost(workload, tensors=4),
    tokens=_tokens,
    mirrors=_MIRRORS,
    bitwise_results=(1,),  # the sum
    oracle=_oracle_add,
    baselines=(
        Baseline(name="vllm._C.fused_add_rms_norm", engine="vllm", load=baselines.vllm_add),
        Baseline(name="sgl_kernel.fused_add_rmsnorm", engine="sglang", load=baselines.sglang_add, devices=("cuda",)),
    ),
    region=_regions.ADDED,
)
