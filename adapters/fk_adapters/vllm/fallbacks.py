"""What vLLM itself would have run at a site, with the task's arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fk_plugin.adapter import Binding


def of(binding: Binding) -> tuple[str, Callable[..., Any]]:
    """(name, function) of vLLM's own implementation at this site. Imports what it needs."""
    return _FALLBACKS[binding.task](binding.device)


def _gated(name: str, native: Callable[..., Any], compiled: Callable[..., str]) -> Callable[[str], Any]:
    """An activation of the first half times the second: `native` on a CPU, torch.ops._C.<compiled> on a GPU."""

    def choose(device: str) -> tuple[str, Callable[..., Any]]:
        if device == "cpu":
            return f"vllm.{name}.forward_native", native
        import torch

        def run(x: Any, *variant: Any) -> Any:
            out = torch.empty((*x.shape[:-1], x.shape[-1] // 2), dtype=x.dtype, device=x.device)
            getattr(torch.ops._C, compiled(*variant))(out, x)
            return out

        return f"vllm.{name}.forward_cuda", run

    return choose


def _silu_native(x: Any, round_activation: bool = True) -> Any:
    from vllm.model_executor.layers.activation import SiluAndMul

    return SiluAndMul.forward_native(x)


def _gelu_native(x: Any, approximate: str = "none", round_activation: bool = True) -> Any:
    import torch

    half = x.shape[-1] // 2
    return torch.nn.functional.gelu(x[..., :half], approximate=approximate) * x[..., half:]


def _rms_norm(device: str) -> tuple[str, Callable[..., Any]]:
    from vllm import ir

    def run(x: Any, weight: Any, eps: float, variance_size: Any = None, rounding: str = "weight") -> Any:
        chosen = _implementation(ir.ops.rms_norm, device, (x, weight, eps, variance_size))
        return chosen(x, weight, eps, variance_size).contiguous()

    return "vllm.ir.rms_norm", run


def _fused_add_rms_norm(device: str) -> tuple[str, Callable[..., Any]]:
    from vllm import ir

    def run(
        x: Any, residual: Any, weight: Any, eps: float, variance_size: Any = None, rounding: str = "weight"
    ) -> None:
        chosen = _implementation(ir.ops.fused_add_rms_norm, device, (x, residual, weight, eps, variance_size))
        for written, result in zip((x, residual), chosen(x, residual, weight, eps, variance_size), strict=True):
            if result is not written:
                written.copy_(result)

    return "vllm.ir.fused_add_rms_norm", run


def _layer_norm(device: str) -> tuple[str, Callable[..., Any]]:
    import torch

    def run(x: Any, weight: Any, bias: Any, eps: float) -> Any:
        wide = x if weight is None else x.to(weight.dtype)
        return torch.nn.functional.layer_norm(wide, x.shape[-1:], weight, bias, eps).to(x.dtype).contiguous()

    return "vllm.LayerNorm.forward_native", run  # forward_cuda and forward_cpu are this


def _implementation(op: Any, device: str, args: tuple[Any, ...]) -> Callable[..., Any]:
    """vLLM's C kernel where it is built and takes the arguments, else its PyTorch code."""
    compiled = op.impls.get("vllm_c") if device == "cuda" else None
    found = compiled if compiled is not None and compiled.supports_args(*args) else op.impls["native"]
    run: Callable[..., Any] = found.impl_fn
    return run


def _rotary_embedding(device: str) -> tuple[str, Callable[..., Any]]:
    from vllm import _custom_ops as ops

    def run(
        query: Any, key: Any, positions: Any, table: Any, head_size: int, is_neox: bool = True,
        round_products: bool = True,
    ) -> None:  # fmt: skip
        ops.rotary_embedding(positions, query, key if key.numel() else None, head_size, table, is_neox)

    return "vllm._C.rotary_embedding", run


_FALLBACKS: dict[str, Callable[[str], tuple[str, Callable[..., Any]]]] = {
    "silu_and_mul": _gated("SiluAndMul", _silu_native, lambda *_: "silu_and_mul"),
    "gelu_and_mul": _gated(
        "GeluAndMul", _gelu_native,
        lambda approximate="none", *_: "gelu_tanh_and_mul" if approximate == "tanh" else "gelu_and_mul",
    ),
    "rms_norm": _rms_norm,
    "fused_add_rms_norm": _fused_add_rms_norm,
    "layer_norm": _layer_norm,
    "rotary_embedding": _rotary_embedding,
}  # fmt: skip
