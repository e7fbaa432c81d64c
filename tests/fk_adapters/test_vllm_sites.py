"""Every class of vLLM that a row names, built as vLLM builds it: our operator is called, and the numbers are vLLM's."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fk_plugin import registry

pytest.importorskip("vllm")

_VERSION = registry.adapter("vllm").installed()[1]
ALL = "rms_norm=cpu_rows,fused_add_rms_norm=cpu_rows,gelu_and_mul=cpu_fused,rotary_embedding=cpu_pairs"

_SETUP = """
import torch
from fk_adapters.vllm.plugin import register, _bound
register()
from fk_plugin import proof
from vllm import _custom_ops
from vllm.config import CompilationConfig, VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.layernorm import RMSNorm
def seen():
    return {task: usage.seen for task, usage in proof.usage(proof.snapshot()).items()}
torch.manual_seed(0)
x, residual = (torch.randn(7, 64, dtype=torch.bfloat16) for _ in range(2))
"""

_NORMS = """
with set_current_vllm_config(VllmConfig()):
    for arguments in ({}, {"var_hidden_size": 32}, {"has_weight": False}):
        layer = RMSNorm(64, 1e-5, dtype=torch.bfloat16, **arguments)
        assert type(layer).__name__ == "FkRMSNorm" and isinstance(layer, RMSNorm)
        assert _bound("rms_norm", layer) and _bound("fused_add_rms_norm", layer)
        with torch.no_grad():
            layer.weight.copy_(torch.randn(64))
        assert torch.equal(layer(x), layer.forward_native(x)), arguments
        expected = layer.forward_native(x.clone(), residual.clone())
        for ours, theirs in zip(layer(x.clone(), residual.clone()), expected, strict=True):
            assert torch.equal(ours, theirs), arguments
assert seen() == {"rms_norm": 3, "fused_add_rms_norm": 3}, seen()
"""

_ONE_OF_TWO = """
with set_current_vllm_config(VllmConfig()):
    layer = RMSNorm(64, dtype=torch.bfloat16)
    out, total = layer(x.clone(), residual.clone())
    layer(x)
assert seen() == {"rms_norm": 1}, seen()
assert torch.equal(total, x + residual)
"""

_GELU = """
from vllm.model_executor.layers.activation import GeluAndMul
with set_current_vllm_config(VllmConfig()):
    for approximate in ("none", "tanh"):
        layer = GeluAndMul(approximate)
        assert type(layer).__name__ == "FkGeluAndMul"
        difference = (layer(x).float() - layer.forward_native(x).float()).abs().max()
        assert difference < 0.02, (approximate, difference)
        assert (layer(x).float() - GeluAndMul(approximate).forward_native(x).float()).abs().max() < 0.02
assert seen() == {"gelu_and_mul": 4}, seen()
"""

_ROTARY = """
import pkgutil
from fk_adapters.vllm.bindings import ADAPTER
rows = {b.site for b in ADAPTER.bindings if b.task == "rotary_embedding"}
assert len(rows) == 8, rows
import inspect
settings = dict(
    head_size=64, rotary_dim=64, max_position_embeddings=256, base=10000.0, is_neox_style=True, dtype=torch.bfloat16,
    scaling_factor=2.0, scaling_factors=[2.0], scaling_alpha=2.0, low_freq_factor=1.0, high_freq_factor=4.0,
    orig_max_position=128, max_trained_positions=128,
)
with set_current_vllm_config(VllmConfig()):
    for site in sorted(rows):
        cls, name, last = pkgutil.resolve_name(site), site.split(":")[1], torch.bfloat16
        layer = cls(**{k: v for k, v in settings.items() if k in inspect.signature(cls.__init__).parameters})
        assert type(layer).__name__ == f"Fk{name}" and _bound("rotary_embedding", layer)
        query, key = torch.randn(7, 256, dtype=last), torch.randn(7, 128, dtype=last)
        positions = torch.arange(7)
        expected = layer.forward_native(positions, query.clone(), key.clone())
        for ours, theirs in zip(layer(positions, query.clone(), key.clone()), expected, strict=True):
            assert (ours.float() - theirs.float()).abs().max() < 0.05, name
        alone, none = layer(positions, query.clone())
        assert none is None and (alone.float() - expected[0].float()).abs().max() < 0.05
assert seen() == {"rotary_embedding": 16}, seen()
"""

_FUSES = """
from vllm.config import CompilationMode
from vllm import ir
if {first!r}:
    ir.ops.rms_norm.register_impl({first!r})(ir.ops.rms_norm.impls["native"].impl_fn)
    ir.ops.rms_norm.set_default([{first!r}])
config = VllmConfig()
config.compilation_config.mode = CompilationMode.VLLM_COMPILE
config.compilation_config.pass_config.fuse_norm_quant = {on}
config.compilation_config.custom_ops = {custom_ops}
with set_current_vllm_config(config):
    layer = RMSNorm(64, dtype=torch.bfloat16)
    assert layer.enabled() is {enabled}, layer.enabled()
    assert _bound("rms_norm", layer) is {bound}
    assert torch.equal(layer(x), layer.forward_native(x))
found = seen().get("rms_norm", 0)
assert (found > 0) is {bound}, found
order = ir.ops.rms_norm.get_priority()
assert (order[:1] == ["fk"]) is {provided}, order
with set_current_vllm_config(config):
    RMSNorm(64, dtype=torch.bfloat16)  # the next layer changes nothing
assert ir.ops.rms_norm.get_priority() == order
if {provided}:
    other = layer.weight.float()
    ir.ops.rms_norm(x, other, 1e-6, None)  # Gemma's, whose weight is computed in float32
    assert seen()["rms_norm"] == found
"""


_LAYER_NORM = """
from vllm.model_executor.layers.layernorm import LayerNorm
with set_current_vllm_config(VllmConfig()):
    for kind, arguments in ((torch.float32, {}), (torch.bfloat16, {}), (torch.float32, {"bias": False}),
                            (torch.float32, {"elementwise_affine": False})):
        layer = LayerNorm(64, dtype=kind, **arguments)
        assert type(layer).__name__ == "FkLayerNorm" and _bound("layer_norm", layer)
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.copy_(torch.randn(64))
        difference = (layer(x).float() - layer.forward_native(x).float()).abs().max()
        assert difference < 0.04, (kind, arguments, difference)
    assert seen() == {"layer_norm": 4}, seen()
    narrow = LayerNorm(64, dtype=torch.bfloat16)  # than float32 values
    try:
        narrow(x.float())
    except RuntimeError as error:  # PyTorch's, from vLLM's own code
        assert "mixed dtype" in str(error), error
assert seen() == {"layer_norm": 4}, seen()
"""

_SECOND_REGISTER = """
from vllm.model_executor import custom_op
from vllm.model_executor.hw_agnostic import custom_op as second
from vllm.model_executor.hw_agnostic.layers.activation import SiluAndMul, get_act_and_mul_fn
assert custom_op.op_registry_oot["SiluAndMul"] is not second.op_registry_oot["SiluAndMul"]
config = VllmConfig()
for custom_ops, ours in ((["none"], 1), (["all"], 1), (["all", "-silu_and_mul"], 0), (["none", "+silu_and_mul"], 1)):
    config.compilation_config.custom_ops = custom_ops
    before = seen().get("silu_and_mul", 0)
    with set_current_vllm_config(config):
        layer = get_act_and_mul_fn("silu")
        assert isinstance(layer, SiluAndMul) and _bound("silu_and_mul", layer) is bool(ours), custom_ops
        half = torch.nn.functional.silu(x[:, :32]) * x[:, 32:]
        assert (layer(x).float() - half.float()).abs().max() < 0.02
    assert seen().get("silu_and_mul", 0) - before == ours, (custom_ops, seen())
"""


@pytest.mark.parametrize("code", [_LAYER_NORM, _SECOND_REGISTER], ids=["layer-norm", "second-register"])
def test_what_0_32_added(run: Callable[..., str], code: str) -> None:
    if all(row.task != "layer_norm" for row in registry.adapter("vllm").select(_VERSION, "cpu")):
        pytest.skip(f"vLLM {_VERSION} has neither class")
    run(_SETUP + code, FK_KERNELS="layer_norm=cpu_rows,silu_and_mul=cpu_fused")


@pytest.mark.parametrize("code", [_NORMS, _GELU, _ROTARY], ids=["norms", "gelu", "rotary"])
def test_each_class_calls_our_operator(run: Callable[..., str], code: str) -> None:
    run(_SETUP + code, FK_KERNELS=ALL)


def test_a_class_of_two_tasks_keeps_vllms_code_for_the_one_not_in_force(run: Callable[..., str]) -> None:
    run(_SETUP + _ONE_OF_TWO, FK_KERNELS="rms_norm=cpu_rows")


@pytest.mark.parametrize(
    ("on", "custom_ops", "first", "provided", "said"),
    [
        (False, ["none"], "", False, None),
        (True, ["none"], "", True, None),
        (True, ["all"], "", True, None),
        (True, ["none", "-rms_norm"], "", False, "fuse_norm_quant fuses this norm"),
        (True, ["none"], "theirs", False, "stays with vLLM's IR: its provider theirs was chosen"),
    ],
)
def test_a_norm_that_vllm_fuses_keeps_its_class_and_gets_our_provider(
    run: Callable[..., str], tmp_path: Path, on: bool, custom_ops: list[str], first: str, provided: bool,
    said: str | None,
) -> None:  # fmt: skip
    """A fusion pass that does not find vLLM's norm says nothing, and the fused kernel is lost."""
    code = _FUSES.format(
        on=on, custom_ops=custom_ops, first=first, provided=provided, bound=provided or not on,
        enabled=not on or custom_ops == ["all"],
    )  # fmt: skip
    run(_SETUP + code, FK_KERNELS=ALL, FK_PROOF_DIR=str(tmp_path))
    events = "".join(path.read_text() for path in tmp_path.glob("*.events.jsonl"))
    assert ('"declined"' in events) == (said is not None) and (said or "") in events


def test_a_norm_that_the_compiler_does_faster_gets_no_provider(run: Callable[..., str], tmp_path: Path) -> None:
    code = _FUSES.format(on=True, custom_ops=["none"], first="", provided=False, bound=False, enabled=False)
    loses = "from fk_plugin import records\nrecords.slower_when_compiled = lambda kernel, device: 'it loses'\n"
    run(_SETUP + loses + code, FK_KERNELS=ALL, FK_PROOF_DIR=str(tmp_path))
    events = "".join(path.read_text() for path in tmp_path.glob("*.events.jsonl"))
    assert "stays with vLLM's IR: it loses" in events


_FUSED = """
from vllm.config import CompilationMode
from vllm.model_executor.layers.activation import SiluAndMul
from vllm.model_executor.layers.rotary_embedding import get_rope
for name in ("{names[0]}", "{names[1]}"):
    config = VllmConfig()
    assert hasattr(config.compilation_config.pass_config, name), name
    config.compilation_config.mode = CompilationMode.VLLM_COMPILE
    for other in ("fuse_act_quant", "enable_qk_norm_rope_fusion", "fuse_rope_kvcache"):
        setattr(config.compilation_config.pass_config, other, other == name)
    with set_current_vllm_config(config):
        rope = get_rope(16, 32, True, {{"rope_type": "default", "rope_theta": 1e4 + len(name)}}, torch.bfloat16)
        found = [_bound("silu_and_mul", SiluAndMul()), _bound("rotary_embedding", rope)]
    assert found == [name != "fuse_act_quant", name == "fuse_act_quant"], (name, found)
"""


def test_what_another_pass_fuses_is_left_to_it(run: Callable[..., str]) -> None:
    for names in (("fuse_act_quant", "enable_qk_norm_rope_fusion"), ("fuse_rope_kvcache", "fuse_act_quant")):
        run(_SETUP + _FUSED.format(names=names), FK_KERNELS="silu_and_mul=cpu_fused,rotary_embedding=cpu_pairs")


_LOSES = """
from fk_plugin import records
def slower(kernel, device):
    return "it loses" if kernel.task == "rms_norm" or {both} else None
records.slower_when_compiled = slower
from vllm.config import CompilationMode
config = VllmConfig()
config.compilation_config.mode = CompilationMode.{mode}
config.compilation_config.custom_ops = ["{custom_ops}"]
with set_current_vllm_config(config):
    layer = RMSNorm(64, dtype=torch.bfloat16)
    assert [_bound(task, layer) for task in ("rms_norm", "fused_add_rms_norm")] == {bound}
    assert torch.equal(layer(x), layer.forward_native(x))
    layer(x.clone(), residual.clone())
    assert [seen().get(task, 0) for task in ("rms_norm", "fused_add_rms_norm")] == {bound}, seen()
import vllm
print("left:", vllm.envs.environment_variables["VLLM_FK_PLUGIN_FINGERPRINT"]().split(":")[-1])
"""


@pytest.mark.parametrize(
    ("mode", "custom_ops", "compiled", "both", "bound"),
    [
        ("VLLM_COMPILE", "none", "measured", False, [False, True]),  # the other task of the class stays ours
        ("VLLM_COMPILE", "none", "measured", True, [False, False]),
        ("VLLM_COMPILE", "none", "bind", True, [True, True]),
        ("VLLM_COMPILE", "all", "measured", True, [True, True]),  # vLLM's own would be opaque too
        ("NONE", "none", "measured", True, [True, True]),  # nothing is compiled
    ],
)
def test_a_task_that_the_compiler_does_faster_is_left_to_it(
    run: Callable[..., str], tmp_path: Path, mode: str, custom_ops: str, compiled: str, both: bool, bound: list[bool]
) -> None:
    code = _SETUP + _LOSES.format(mode=mode, custom_ops=custom_ops, both=both, bound=bound)
    said = run(code, FK_KERNELS=ALL, FK_PROOF_DIR=str(tmp_path), FK_COMPILED=compiled)
    events = "".join(path.read_text() for path in tmp_path.glob("*.events.jsonl"))
    assert ('"it loses"' in events) == (not all(bound))
    # Part of the compile-cache key: a graph that was compiled with the operator must not be loaded without it.
    assert ("left: rms_norm" in said) == (compiled == "measured")
