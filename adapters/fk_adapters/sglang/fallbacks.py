"""What SGLang itself would have run at a site, with the task's arguments.

On a CPU that is the task's reference, which SGLang's forward_native equals bit for bit (tests/engines_native).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fk_plugin import registry
from fk_plugin.adapter import Binding


def of(binding: Binding) -> tuple[str, Callable[..., Any]]:
    """(name, function) of SGLang's own implementation at this site. Imports what it needs."""
    reference = registry.task(binding.task).reference
    name = f"sglang.{binding.owner}.{binding.method}"
    return name, reference if binding.device == "cpu" else _CUDA[binding.task](reference)


def _gated(choose: Callable[..., str]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def of_task(reference: Callable[..., Any]) -> Callable[..., Any]:
        import torch
        from sglang.srt.layers import activation

        def run(x: Any, *variant: Any) -> Any:
            out = torch.empty((*x.shape[:-1], x.shape[-1] // 2), dtype=x.dtype, device=x.device)
            getattr(activation, choose(*variant))(x, out)
            return out

        return run

    return of_task


def _rms_norm(reference: Callable[..., Any]) -> Callable[..., Any]:
    from sglang.srt.layers import layernorm

    def run(x: Any, weight: Any, eps: float, variance_size: Any = None, rounding: str = "weight") -> Any:
        if rounding != "once" or variance_size is not None or weight is None or weight.dtype != x.dtype:
            return reference(x, weight, eps, variance_size, rounding)
        return layernorm.rmsnorm(x.contiguous().reshape(-1, x.shape[-1]), weight, eps).reshape(x.shape)

    return run


def _fused_add_rms_norm(reference: Callable[..., Any]) -> Callable[..., Any]:
    from sglang.srt.layers import layernorm

    def run(
        x: Any, residual: Any, weight: Any, eps: float, variance_size: Any = None, rounding: str = "weight"
    ) -> None:
        if rounding != "once" or variance_size is not None or weight is None or weight.dtype != x.dtype:
            reference(x, residual, weight, eps, variance_size, rounding)
        elif x.dim() == 2:
            layernorm.fused_add_rmsnorm(x, residual, weight, eps)
        else:  # the kernel takes rows; since 0.5.23 SGLang's norm takes any shape
            rows = [t.contiguous().view(-1, t.shape[-1]) for t in (x, residual)]
            layernorm.fused_add_rmsnorm(*rows, weight, eps)
            for written, result in zip((x, residual), rows, strict=True):
                if result.data_ptr() != written.data_ptr():
                    written.copy_(result.view(written.shape))

    return run


def _layer_norm(reference: Callable[..., Any]) -> Callable[..., Any]:
    import torch
    from sglang.srt.layers import layernorm

    def run(x: Any, weight: Any, bias: Any, eps: float) -> Any:
        kernel = layernorm.layernorm if layernorm._flashinfer_layernorm_available else None
        fits = x.dtype == torch.bfloat16 and all(t is not None and t.dtype == torch.float32 for t in (weight, bias))
        return kernel(x, weight, bias, eps) if kernel is not None and fits else reference(x, weight, bias, eps)

    return run


def _rotary_embedding(reference: Callable[..., Any]) -> Callable[..., Any]:
    from sglang.srt.layers.rotary_embedding import base

    def run(
        query: Any, key: Any, positions: Any, table: Any, head_size: int, is_neox: bool = True,
        round_products: bool = True,
    ) -> None:  # fmt: skip
        heads = [x.view(len(positions), -1, head_size)[..., : table.shape[-1]] for x in (query, key)]
        base.apply_rope_with_cos_sin_cache_inplace(
            positions=positions, q=heads[0], k=heads[1], cos_sin_cache=table, is_neox=is_neox, fused_args=None
        )

    return run


_CUDA: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "silu_and_mul": _gated(lambda *_: "silu_and_mul"),
    "gelu_and_mul": _gated(
        lambda approximate="none", *_: "gelu_tanh_and_mul" if approximate == "tanh" else "gelu_and_mul"
    ),
    "rms_norm": _rms_norm,
    "fused_add_rms_norm": _fused_add_rms_norm,
    "layer_norm": _layer_norm,
    "rotary_embedding": _rotary_embedding,
}
