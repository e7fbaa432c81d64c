"""What vLLM itself would have run at a site, with the task's arguments."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from typing import Any

from fk_plugin.adapter import Binding


def of(binding: Binding) -> tuple[str, Callable[..., Any]]:
    """(name, function) of vLLM's own implementation at this site."""
    return _FALLBACKS[(binding.task, binding.device)](binding)


def _silu_and_mul_cpu(binding: Binding) -> tuple[str, Callable[..., Any]]:
    owner: Any = pkgutil.resolve_name(f"{binding.module}:{binding.owner}")
    return "vllm.SiluAndMul.forward_native", lambda x, round_activation=True: owner.forward_native(x)


def _silu_and_mul_cuda(binding: Binding) -> tuple[str, Callable[..., Any]]:
    import torch

    def run(x: Any, round_activation: bool = True) -> Any:
        out = torch.empty((*x.shape[:-1], x.shape[-1] // 2), dtype=x.dtype, device=x.device)
        torch.ops._C.silu_and_mul(out, x)
        return out

    return "vllm._C.silu_and_mul", run


_FALLBACKS: dict[tuple[str, str], Callable[[Binding], tuple[str, Callable[..., Any]]]] = {
    ("silu_and_mul", "cpu"): _silu_and_mul_cpu,
    ("silu_and_mul", "cuda"): _silu_and_mul_cuda,
}
