"""Ways to be silently unused: each is either not possible or said aloud.

The engines are told that they run on CUDA where a trap exists there only; no kernel needs a GPU here.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from fk_plugin.counters import read_events

_PLAIN = """
import torch.nn.functional as F
def silu_and_mul(x, round_activation=True):
    half = x.shape[-1] // 2
    return F.silu(x[..., :half]) * x[..., half:]
"""

_SEEN = """
import torch
from fk_plugin import attach, env, proof
def seen():
    return {task: usage.seen for task, usage in proof.usage(proof.snapshot()).items()}
x = torch.randn(3, 64, dtype=torch.bfloat16)
"""

_VLLM_ON_CUDA = (
    _SEEN
    + """
from vllm.platforms import current_platform
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.activation import SiluAndMul
from fk_adapters.vllm import plugin
import vllm.model_executor.model_loader.base_loader  # imports extensions that a CPU build lacks once it is "CUDA"
config = VllmConfig()
kind = type(current_platform)
kind.is_cpu, kind.is_cuda, kind.is_cuda_alike = (lambda self, answer=a: answer for a in (False, True, True))
# in the tree's own constructor only: it looks for an operator that a CPU build lacks
torch.ops._C.__dict__.setdefault("silu_and_mul", lambda *_: None)
plugin.register()
for custom_ops in (["none"], ["all"], ["none", "+silu_and_mul"]):
    config.compilation_config.custom_ops = custom_ops
    with set_current_vllm_config(config):
        layer = SiluAndMul()
        assert plugin._bound("silu_and_mul", layer), custom_ops
        layer(x)
assert seen() == {"silu_and_mul": 3}, seen()
"""
)

_VLLM_SUBCLASS = (
    _SEEN
    + """
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.activation import SiluAndMul
from fk_adapters.vllm import plugin
class ModelsOwn(SiluAndMul):
    pass
plugin.register()
with set_current_vllm_config(VllmConfig()):
    model = torch.nn.Sequential(ModelsOwn())
settings = env.read({"FK_PLUGIN": "strict"})
try:
    attach.model_loaded(model, settings, planned=["silu_and_mul"], bound=plugin._bound)
except Exception as error:
    print(type(error).__name__, error)
"""
)

_VLLM_MISSPELT = """
import dataclasses
from fk_adapters.vllm import bindings, plugin
rows = tuple(dataclasses.replace(row, target=row.target.replace("SiluAndMul", "SiluAndMull"))
             for row in bindings.BINDINGS if row.task == "silu_and_mul")
plugin.ADAPTER = dataclasses.replace(bindings.ADAPTER, bindings=rows)
try:
    plugin.register()
except Exception as error:
    print(type(error).__name__, error)
"""

_VLLM_FORK = (
    _SEEN
    + """
import os
from pathlib import Path
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.activation import SiluAndMul
from fk_adapters.vllm import plugin
from fk_plugin.counters import read_folder
plugin.register()
with set_current_vllm_config(VllmConfig()):
    layer = SiluAndMul()
layer(x)
child = os.fork()
if child == 0:
    plugin.register()  # vLLM does not run it again after a fork, and nothing must depend on that
    layer(x), layer(x)
    os._exit(0)
os.waitpid(child, 0)
calls = {pid: sum(u.seen for u in proof.usage(counts).values())
         for pid, counts in read_folder(Path(os.environ["FK_PROOF_DIR"])).items()}
assert calls == {os.getpid(): 1, child: 2}, calls
"""
)

_SGLANG_ON_CUDA = (
    _SEEN
    + """
from types import SimpleNamespace
import sglang.srt.model_executor.model_runner  # imports extensions that a CPU build lacks once it is "CUDA"
import sglang.srt.utils as utils
from sglang.srt.layers import activation
from sglang.srt.layers.utils import multi_platform
from sglang.srt.plugins.hook_registry import HookRegistry
activation.get_server_args = lambda: SimpleNamespace(rl_on_policy_target=None)
utils.is_cuda = lambda: True
multi_platform._is_cuda, multi_platform._is_cpu = True, False
from fk_adapters.sglang import plugin
plugin.register()
HookRegistry.apply_hooks()
layer = activation.SiluAndMul()
assert plugin._bound("silu_and_mul", layer)
layer(x)
assert seen() == {"silu_and_mul": 1}, seen()
model = torch.nn.Sequential(layer)
for compiled in (False, True):
    try:
        plugin._model_loaded(None, SimpleNamespace(
            model=model, server_args=SimpleNamespace(enable_torch_compile=compiled)))
    except Exception as error:
        assert compiled
        print(type(error).__name__, error)
"""
)

_SGLANG_SWALLOWED = (
    _SEEN
    + """
from types import SimpleNamespace
from sglang.srt.layers import activation
from sglang.srt.plugins.hook_registry import HookRegistry
from fk_adapters.sglang import plugin
activation.get_server_args = lambda: SimpleNamespace(rl_on_policy_target=None)
plugin.register()
apply = HookRegistry._apply_target.__func__
def fails(cls, target, hooks):
    if "SiluAndMul" in target:
        raise AttributeError("renamed by the engine")
    return apply(cls, target, hooks)
HookRegistry._apply_target = classmethod(fails)
HookRegistry.apply_hooks()  # logs the error and goes on
model = torch.nn.Sequential(activation.SiluAndMul())
try:
    plugin._model_loaded(None, SimpleNamespace(
        model=model, server_args=SimpleNamespace(enable_torch_compile=False)))
except Exception as error:
    print(type(error).__name__, error)
"""
)

_NOT_BOUND = "StrictError FK_PLUGIN=strict: task silu_and_mul is not bound anywhere in Sequential"


@pytest.fixture
def plain(tmp_path: Path) -> str:
    """A kernel for any device."""
    path = tmp_path / "plain.py"
    path.write_text(_PLAIN)
    return f"silu_and_mul={path}"


@pytest.fixture
def vllm() -> None:
    pytest.importorskip("vllm")


@pytest.fixture
def sglang() -> None:
    pytest.importorskip("sglang")


def test_vllm_on_cuda_reaches_our_class_whatever_custom_ops_says(
    vllm: None, run: Callable[..., str], plain: str
) -> None:
    """forward_oot is never called on CUDA, and under Inductor custom_ops is "none", which calls forward_native."""
    run(_VLLM_ON_CUDA, FK_KERNELS=plain)


def test_vllm_a_models_own_subclass_is_not_replaced_and_strict_says_so(vllm: None, run: Callable[..., str]) -> None:
    said = run(_VLLM_SUBCLASS, FK_KERNELS="silu_and_mul=cpu_fused")
    assert _NOT_BOUND in said


@pytest.mark.parametrize("mode", ["auto", "strict"])
def test_vllm_a_misspelt_class_stands_down_aloud(vllm: None, run: Callable[..., str], mode: str) -> None:
    """register_oot takes any name and never reports one that no class has."""
    said = run(_VLLM_MISSPELT, FK_KERNELS="silu_and_mul=cpu_fused", FK_PLUGIN=mode)
    assert "SiluAndMull.forward_cpu, but it cannot be imported" in said
    assert ("StrictError" in said) == (mode == "strict")


def test_vllm_a_forked_process_counts_for_itself(vllm: None, run: Callable[..., str], tmp_path: Path) -> None:
    run(_VLLM_FORK, FK_KERNELS="silu_and_mul=cpu_fused", FK_PROOF_DIR=str(tmp_path / "proof"))


@pytest.mark.parametrize("mode", ["auto", "strict"])
def test_sglang_on_cuda_calls_our_hook_and_declines_compiled_decode(
    sglang: None, run: Callable[..., str], plain: str, tmp_path: Path, mode: str
) -> None:
    """register_oot_forward is consulted on out-of-tree platforms only; compiled batches run forward_native."""
    said = run(_SGLANG_ON_CUDA, FK_KERNELS=plain, FK_PLUGIN=mode, FK_PROOF_DIR=str(tmp_path))
    assert ("StrictError" in said) == (mode == "strict")
    declined = [e for e in read_events(tmp_path) if e["event"] == "declined"]
    assert [(e["task"], e["owner"]) for e in declined] == [("silu_and_mul", "compiled decode")]


def test_sglang_a_hook_that_failed_to_apply_is_not_called_bound(sglang: None, run: Callable[..., str]) -> None:
    """SGLang logs what a hook's application raises and serves without it."""
    said = run(_SGLANG_SWALLOWED, FK_KERNELS="silu_and_mul=cpu_fused", FK_PLUGIN="strict")
    assert _NOT_BOUND in said
