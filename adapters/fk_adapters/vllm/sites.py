"""What a replaced method calls. A site is a class of vLLM's; several tasks may meet there.

A method is made from the operators in force, by task, and from vLLM's own method, which keeps what they do not cover.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Calls = Mapping[str, Callable[..., Any]]
Method = Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class Site:
    """`method` makes the replacement; `task_of` says from a call's arguments which task it is; `declines` says why this
    engine, as configured, is better off without us here, or None. `provided`: what it declines for a pass may come
    back through a provider (see ir_route).
    """

    method: Callable[[Calls, Method], Method]
    task_of: Callable[..., str]
    declines: Callable[[Any], str | None] = lambda config: None
    provided: bool = False


def of(owner: str) -> Site:
    """The site of a class."""
    return _SITES.get(owner, _ROTARY)


def _silu_and_mul(calls: Calls, own: Method) -> Method:
    call = calls["silu_and_mul"]

    def forward(self: Any, x: Any) -> Any:
        return call(x)

    return forward


def _gelu_and_mul(calls: Calls, own: Method) -> Method:
    call = calls["gelu_and_mul"]

    def forward(self: Any, x: Any) -> Any:
        return call(x, self.approximate)

    return forward


def _rms_norm(calls: Calls, own: Method) -> Method:
    plain, fused = calls.get("rms_norm"), calls.get("fused_add_rms_norm")

    def forward(self: Any, x: Any, residual: Any = None) -> Any:
        if residual is None:
            if plain is None:
                return own(self, x)
            weight = self.weight.data if self.pass_weight else None
            return plain(x, weight, self.variance_epsilon, self.variance_size_override)
        if fused is None:
            return own(self, x, residual)
        weight = self.weight.data if self.pass_weight_add else None
        return fused(x, residual, weight, self.variance_epsilon, self.variance_size_override)

    return forward


def _layer_norm(calls: Calls, own: Method) -> Method:
    call = calls["layer_norm"]

    def forward(self: Any, x: Any) -> Any:
        if self._compute_dtype(x) != (x if self.weight is None else self.weight).dtype:  # parameters narrower than x
            return own(self, x)
        weight, bias = (None if p is None else p.data for p in (self.weight, self.bias))
        return call(x, weight, bias, self.eps)

    return forward


def _fused_by(what: str, *names: str) -> Callable[[Any], str | None]:
    """vLLM's fusion passes look for its own operators, and a pass that finds none says nothing."""

    def declines(config: Any) -> str | None:
        on = [name for name in names if getattr(config.pass_config, name, None)]
        if on and config.mode.name == "VLLM_COMPILE":
            return f"vLLM's pass {', '.join(on)} fuses this {what} with its neighbours"
        return None

    return declines


def _rotary(calls: Calls, own: Method) -> Method:
    call = calls["rotary_embedding"]

    def forward(self: Any, positions: Any, query: Any, key: Any = None) -> Any:
        if self.use_flashinfer:
            return own(self, positions, query, key)
        table = self._match_cos_sin_cache_dtype(query)
        other = query[:, :0] if key is None else key
        turned, other = call(query, other, positions, table, self.head_size, self.is_neox_style)
        return turned, None if key is None else other

    return forward


_SITES = {
    "SiluAndMul": Site(
        method=_silu_and_mul,
        task_of=lambda *_: "silu_and_mul",
        declines=_fused_by("activation", "fuse_act_quant"),
    ),
    "GeluAndMul": Site(method=_gelu_and_mul, task_of=lambda *_: "gelu_and_mul"),
    "LayerNorm": Site(method=_layer_norm, task_of=lambda *_: "layer_norm"),
    "RMSNorm": Site(
        method=_rms_norm,
        task_of=lambda self, x, residual=None: "rms_norm" if residual is None else "fused_add_rms_norm",
        declines=_fused_by(
            "norm",
            "fuse_norm_quant",
            "fuse_allreduce_rms",
            "enable_sp",
            "enable_qk_norm_rope_fusion",
            "fuse_qk_norm_rope_kvcache",
        ),
        provided=True,
    ),
}
_ROTARY = Site(
    method=_rotary,
    task_of=lambda *_, **__: "rotary_embedding",
    declines=_fused_by("rotation", "enable_qk_norm_rope_fusion", "fuse_rope_kvcache", "fuse_qk_norm_rope_kvcache"),
)
