"""The second route to vLLM's norms, open from 0.26 to 0.33: a provider of an operator of its intermediate language.

vLLM's fusion passes look for those operators, so a class in the norm's place would hide the norm from them. What no
pass has fused is lowered to the first provider of a list, which is where a kernel can stand without being in the way.
vLLM 0.34 removes the language, and without a pass the class is the better route: who called it is known by name.
"""
# No postponed annotations here: vLLM compares the signatures of providers as objects.

import pkgutil
from typing import Any

import torch
from torch import Tensor

PROVIDER = "fk"
_GENERIC = "native"  # what vLLM takes under Inductor unless the user or the platform asks for something else


def _rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
    result: Tensor = torch.ops.fk.rms_norm(x, weight, epsilon, variance_size, "weight")
    return result


def _fused_add_rms_norm(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> tuple[Tensor, Tensor]:
    normed, total = torch.ops.fk.fused_add_rms_norm.returning(x, x_residual, weight, epsilon, variance_size, "weight")
    return normed, total


def _takes(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> bool:
    # A weight of another dtype is Gemma's, computed on the way: that norm belongs to no class of ours.
    return weight is None or weight.dtype == x.dtype


def _takes_with_sum(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> bool:
    return weight is None or weight.dtype == x.dtype


_PROVIDERS = {"rms_norm": (_rms_norm, _takes), "fused_add_rms_norm": (_fused_add_rms_norm, _takes_with_sum)}


def prefer(task: str) -> str | None:
    """Put our operator first among this process's providers of `task`; again changes nothing.

    Call it once the worker has set its list, which is before it builds a model. Returns None, or why the list stays
    as it is.

    Raises:
        ImportError, AttributeError and others: this vLLM's language is not as we know it.
    """
    if task not in _PROVIDERS:
        return "vLLM has no operator of its own for it"
    operator: Any = pkgutil.resolve_name(f"vllm.ir.ops:{task}")
    order = operator.get_priority()
    if order and order[0] not in (PROVIDER, _GENERIC):
        return f"its provider {order[0]} was chosen"
    implementation, takes = _PROVIDERS[task]
    if PROVIDER not in operator.impls:
        operator.register_impl(PROVIDER, supports_args=takes)(implementation)
    if not order or order[0] != PROVIDER:
        operator.set_default([PROVIDER, *(order or [_GENERIC])])
    return None
