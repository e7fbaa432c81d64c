"""What production runs for the norms today, with the tasks' arguments."""

from collections.abc import Callable
from typing import Any

import torch


def vllm(device: str) -> Callable[..., Any]:
    from vllm import _custom_ops as ops

    def run(x: torch.Tensor, weight: torch.Tensor, eps: float, *_: Any) -> torch.Tensor:
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        ops.rms_norm(out, x, weight, eps)
        return out

    return run


def vllm_add(device: str) -> Callable[..., Any]:
    from vllm import _custom_ops as ops

    def run(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, *_: Any) -> None:
        ops.fused_add_rms_norm(x, residual, weight, eps)

    return run


def sglang(device: str) -> Callable[..., Any]:
    from sgl_kernel import rmsnorm

    return lambda x, weight, eps, *_: rmsnorm(x.reshape(-1, x.shape[-1]), weight, eps).view(x.shape)


def sglang_add(device: str) -> Callable[..., Any]:
    from sgl_kernel import fused_add_rmsnorm

    def run(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, *_: Any) -> None:
        fused_add_rmsnorm(x, residual, weight, eps)

    return run


def torch_native(device: str) -> Callable[..., Any]:
    return lambda x, weight, eps, *_: torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps)
