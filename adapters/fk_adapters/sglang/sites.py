"""What a hook around a method calls. A site is a class of SGLang's; several tasks may meet there.

A hook is made from the operators in force, by task. It gets SGLang's own method first, which keeps what they do not
cover.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fk_plugin.adapter import Binding

Calls = Mapping[str, Callable[..., Any]]
Hook = Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class Site:
    """`hook` makes the hook around the method; `task_of` says from a call's arguments which task it is."""

    hook: Callable[[Calls], Hook]
    task_of: Callable[..., str]


def of(row: Binding) -> Site:
    """The site of a row's class; the signature tells the versions apart."""
    return _QUANTISING_NORM if "quant_linear" in row.signature else _SITES[row.owner]


def _silu_and_mul(calls: Calls) -> Hook:
    call = calls["silu_and_mul"]

    def around(own: Any, self: Any, x: Any) -> Any:
        return call(x)

    return around


def _gelu_and_mul(calls: Calls) -> Hook:
    call = calls["gelu_and_mul"]

    def around(own: Any, self: Any, x: Any) -> Any:
        return call(x, self.approximate)

    return around


def _layer_norm(calls: Calls) -> Hook:
    call = calls["layer_norm"]

    def around(own: Any, self: Any, x: Any) -> Any:
        weight = self.weight.data if self.elementwise_affine else None
        bias = self.bias.data if self.use_bias else None
        return call(x, weight, bias, self.variance_epsilon)

    return around


def _rms_norm(calls: Calls) -> Hook:
    from sglang.srt.batch_invariant_ops import is_batch_invariant_mode_enabled

    plain, fused = calls.get("rms_norm"), calls.get("fused_add_rms_norm")

    def around(own: Any, self: Any, x: Any, residual: Any = None, post_residual_addition: Any = None) -> Any:
        call = plain if residual is None else fused
        special = self.fp32_residual or self.override_orig_dtype is not None or post_residual_addition is not None
        if call is None or special or x.numel() == 0 or is_batch_invariant_mode_enabled():
            return own(self, x, residual, post_residual_addition)
        weight, rounding = self.weight.data, "input" if self.cast_x_before_out_mul else "once"
        settings = (weight, self.variance_epsilon, self.variance_size_override, rounding)
        if residual is None:
            return call(x, *settings)
        if rounding == "input" and weight.dtype != x.dtype:
            return own(self, x, residual, post_residual_addition)
        return call(x, residual, *settings)

    return around


def _quantising_rms_norm(calls: Calls) -> Hook:
    """Models name the projection behind each norm; where it takes FP8, SGLang's norm writes its input already."""
    from sglang.srt.layers.layernorm import _fp8_static_input_scale

    unquantised = _rms_norm(calls)

    def around(
        own: Any, self: Any, x: Any, residual: Any = None, post_residual_addition: Any = None, quant_linear: Any = None
    ) -> Any:
        linear = self._quant_linear if quant_linear is None else quant_linear
        if _fp8_static_input_scale(linear) is not None:
            return own(self, x, residual, post_residual_addition, quant_linear)
        return unquantised(own, self, x, residual, post_residual_addition)

    return around


def _rotary_embedding(calls: Calls) -> Hook:
    call = calls["rotary_embedding"]

    def around(
        own: Any,
        self: Any,
        positions: Any,
        query: Any,
        key: Any,
        offsets: Any = None,
        fused_set_kv_buffer_arg: Any = None,
    ) -> Any:
        special = offsets is not None or fused_set_kv_buffer_arg is not None or positions.dim() != 1
        # A class of its own may keep another table (sin_cos_cache) and inherit the method.
        if special or (query.is_cuda and self.use_fallback_kernel) or hasattr(self, "sin_cos_cache"):
            return own(self, positions, query, key, offsets, fused_set_kv_buffer_arg)
        return call(query, key, positions, self.cos_sin_cache, self.head_size, self.is_neox_style)

    return around


def _norm_task(self: Any, x: Any, residual: Any = None, *_: Any, **__: Any) -> str:
    return "rms_norm" if residual is None else "fused_add_rms_norm"


_SITES = {
    "SiluAndMul": Site(hook=_silu_and_mul, task_of=lambda *_: "silu_and_mul"),
    "GeluAndMul": Site(hook=_gelu_and_mul, task_of=lambda *_: "gelu_and_mul"),
    "LayerNorm": Site(hook=_layer_norm, task_of=lambda *_: "layer_norm"),
    "RMSNorm": Site(hook=_rms_norm, task_of=_norm_task),
    "RotaryEmbedding": Site(hook=_rotary_embedding, task_of=lambda *_, **__: "rotary_embedding"),
}
_QUANTISING_NORM = Site(hook=_quantising_rms_norm, task_of=_norm_task)
