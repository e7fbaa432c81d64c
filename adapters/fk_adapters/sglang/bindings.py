"""The table: which callables of which SGLang versions compute which task. A new version is one more row."""

from collections.abc import Mapping
from typing import Any

from fk_plugin.adapter import Adapter, Binding

_LAYERS = "sglang.srt.layers"
_ACTIVATION, _NORM = f"{_LAYERS}.activation", f"{_LAYERS}.layernorm"
_PLAIN = "(self, x: torch.Tensor) -> torch.Tensor"
_ADD = (
    "(self, x: torch.Tensor, residual: Optional[torch.Tensor] = None, "
    "post_residual_addition: Optional[torch.Tensor] = None) "
    "-> Union[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]"
)
_ADD_OR_QUANTISE = _ADD.replace(") ->", ", quant_linear: Optional[torch.nn.modules.module.Module] = None) ->")
_ROPE = (
    "(self, positions: 'torch.Tensor', query: 'torch.Tensor', key: 'torch.Tensor', "
    "offsets: 'Optional[torch.Tensor]' = None, fused_set_kv_buffer_arg: 'Optional[{}]' = None) "
    "-> 'Tuple[torch.Tensor, torch.Tensor]'"
)
_ROPES = (_ROPE.format("Union[FusedSetKVBufferArg, dict]"), _ROPE.format("FusedSetKVBufferArg"))


def _rows(
    versions: str, task: str, owner: str, signatures: tuple[str, str], cuda: Mapping[str, Any], cpu: Mapping[str, Any]
) -> list[Binding]:
    """One row for each device. Without AMX SGLang dispatches CPU modules to forward_native."""
    return [
        Binding(
            engine="sglang", versions=versions, device=device, task=task, target=f"{owner}.{method}",
            signature=signature, arguments=arguments,
        )
        for device, method, signature, arguments in (
            ("cuda", "forward_cuda", signatures[0], cuda), ("cpu", "forward_native", signatures[1], cpu),
        )
    ]  # fmt: skip


def _table(versions: str, norm: str) -> list[Binding]:
    plain, norms = (_PLAIN, _PLAIN), (norm, norm)
    # SGLang's CUDA kernels round once; its PyTorch code rounds the activation, and the products of a rotation.
    gated = ({"round_activation": False}, {"round_activation": True})
    rotation = ({"round_products": False}, {"round_products": True})
    return [
        *_rows(versions, "silu_and_mul", f"{_ACTIVATION}:SiluAndMul", plain, *gated),
        *_rows(versions, "gelu_and_mul", f"{_ACTIVATION}:GeluAndMul", plain, *gated),
        *_rows(versions, "rms_norm", f"{_NORM}:RMSNorm", norms, {}, {}),
        *_rows(versions, "fused_add_rms_norm", f"{_NORM}:RMSNorm", norms, {}, {}),
        *_rows(versions, "layer_norm", f"{_NORM}:LayerNorm", plain, {}, {}),
        *_rows(versions, "rotary_embedding", f"{_LAYERS}.rotary_embedding.base:RotaryEmbedding", _ROPES, *rotation),
    ]


BINDINGS = (*_table(">=0.5.16,<0.5.17", _ADD), *_table(">=0.5.23,<0.5.24", _ADD_OR_QUANTISE))

ADAPTER = Adapter(
    engine="sglang",
    distributions=("sglang",),
    entry_point_group="sglang.srt.plugins",
    entry_point="fk_plugin",
    filter_variable="SGLANG_PLUGINS",
    empty_filter_loads_all=True,
    bindings=BINDINGS,
    launcher="fk_adapters.sglang.launcher:SglangLauncher",
    needs=(
        "sglang.srt.utils:is_cuda",
        "sglang.srt.plugins.hook_registry:HookRegistry._hooks",
        "sglang.srt.plugins.hook_registry:HookRegistry._patched",
        "sglang.srt.model_executor.model_runner:ModelRunner.load_model",
    ),
)
