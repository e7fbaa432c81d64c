"""The table: which callables of which SGLang versions compute which task. A new version is one more row."""

from fk_plugin.adapter import Adapter, Binding

_ACTIVATION = "sglang.srt.layers.activation"

BINDINGS = (
    Binding(
        engine="sglang",
        versions=">=0.5.16,<0.5.17",
        device="cuda",
        task="silu_and_mul",
        target=f"{_ACTIVATION}:SiluAndMul.forward_cuda",
        signature="(self, x: torch.Tensor) -> torch.Tensor",
        arguments={"round_activation": False},
    ),
    Binding(
        engine="sglang",
        versions=">=0.5.16,<0.5.17",
        device="cpu",  # without AMX SGLang dispatches CPU modules to forward_native
        task="silu_and_mul",
        target=f"{_ACTIVATION}:SiluAndMul.forward_native",
        signature="(self, x: torch.Tensor) -> torch.Tensor",
        arguments={"round_activation": True},
    ),
)

ADAPTER = Adapter(
    engine="sglang",
    distributions=("sglang",),
    entry_point_group="sglang.srt.plugins",
    entry_point="fk_plugin",
    filter_variable="SGLANG_PLUGINS",
    empty_filter_loads_all=True,
    bindings=BINDINGS,
    launcher="fk_adapters.sglang.launcher:SglangLauncher",
)
