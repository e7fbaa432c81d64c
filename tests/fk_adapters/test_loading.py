"""The way from an engine's plugin loader to our classes: every process takes it, and where it breaks, it says so.

The engines' own loaders run here, on the entry points as installed. vLLM logs an import error and goes on; what a
plugin function raises ends vLLM. SGLang logs and goes on after both.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

CHOICE = {"FK_KERNELS": "silu_and_mul=cpu_fused"}

_VLLM = """
import torch
from vllm.plugins import load_general_plugins as load
from vllm.config import VllmConfig, set_current_vllm_config
def layer():
    from vllm.model_executor.layers.activation import SiluAndMul
    with set_current_vllm_config(VllmConfig()):
        return SiluAndMul()
"""

_SGLANG = """
import torch
from types import SimpleNamespace
from sglang.srt.plugins import load_plugins as load
from sglang.srt.layers import activation
activation.get_server_args = lambda: SimpleNamespace(rl_on_policy_target=None)
def layer():
    return activation.SiluAndMul()
"""

_CALLS = """
x = torch.randn(3, 64, dtype=torch.bfloat16)
def calls():
    from fk_plugin import proof
    return sum(usage.seen for usage in proof.usage(proof.snapshot()).values())
"""

_SPAWN = """
import multiprocessing, os
child = '''
{child}
load()
layer()(x), layer()(x)
assert calls() == 2, calls()
'''
load()
layer()(x)
started = multiprocessing.get_context("spawn").Process(target=exec, args=(child, {{}}))
started.start()
started.join()
assert started.exitcode == 0, "the child failed"
assert calls() == 1, calls()
"""

_FORK = """
import os
load()
before = layer()
before(x)
child = os.fork()
if child == 0:
    load()
    before(x), layer()(x)
    os._exit(0 if calls() == 2 else 1)
assert os.waitpid(child, 0)[1] == 0, "the child failed"
assert calls() == 1, calls()
"""

# Ways in which an engine may be built otherwise than its adapter expects: what to do first, and what must be said.
_UNEXPECTED = {
    "vllm-a-module-that-raises": (
        """
import sys
class Raises:
    def find_spec(self, name, path=None, target=None):
        if name == "vllm.model_executor.layers.activation":
            raise RuntimeError("operator defined twice")
sys.meta_path.insert(0, Raises())
""",
        "SiluAndMul.forward_cpu, but it cannot be imported: operator defined twice",
    ),
    "vllm-no-register_oot": (
        """
from vllm.model_executor.custom_op import CustomOp
del CustomOp.register_oot
""",
        "nothing can be bound in this vllm: expected vllm.model_executor.custom_op:CustomOp.register_oot",
    ),
    "vllm-an-unknown-version-without-our-loader": (
        """
import vllm
import vllm.model_executor.model_loader.base_loader as loader
del loader.BaseModelLoader
vllm.__version__ = "0.99"
""",
        "nothing can be bound in this vllm: expected vllm.model_executor.model_loader.base_loader",
    ),
    "vllm-a-class-that-is-no-operator": (
        """
from vllm.model_executor.layers import activation
class SiluAndMul(torch.nn.Module):
    def forward_cpu(self, x: torch.Tensor) -> torch.Tensor:
        return x
activation.SiluAndMul = SiluAndMul
""",
        "activation:SiluAndMul cannot be bound: it is no CustomOp",
    ),
    "vllm-a-version-that-is-none": (
        """
import vllm
vllm.__version__ = "dev"
""",
        " on cuda, but found dev on cpu",
    ),
    "vllm-a-method-that-is-none": (
        """
from vllm.model_executor.layers.activation import SiluAndMul
SiluAndMul.forward_cpu = 3
""",
        "SiluAndMul.forward_cpu to be a method, but found a int",
    ),
    "sglang-no-load_model": (
        """
from sglang.srt.model_executor.model_runner import ModelRunner
del ModelRunner.load_model
""",
        "nothing can be bound in this sglang: expected sglang.srt.model_executor.model_runner:ModelRunner.load_model",
    ),
    "sglang-a-class-without-its-method": (
        """
from sglang.srt.layers.activation import SiluAndMul
del SiluAndMul.forward_native
""",
        "expected sglang.srt.layers.activation:SiluAndMul.forward_native with signature",
    ),
}
# Strict ends vLLM in its plugin loader; SGLang swallows what is raised there, so it is raised where a start begins.
_TRY = {
    "vllm": """
try:
    load()
    from vllm.model_executor.custom_op import op_registry_oot
    print("replaced", sorted(op_registry_oot))
except Exception as error:
    print("refused", type(error).__name__, error)
""",
    "sglang": """
load()
from sglang.srt.plugins.hook_registry import HookRegistry
from sglang.srt.server_args import ServerArgs
print("replaced", sorted(t for t in HookRegistry._patched if "layers" in t))
try:
    ServerArgs.__post_init__(object())
except Exception as error:
    print("refused" if "FK_PLUGIN" in str(error) else "started", type(error).__name__, error)
""",
}


@dataclass(frozen=True)
class Engine:
    """An engine's loader and how to build one of its activations, as code."""

    name: str
    code: str


ENGINES = {"vllm": Engine("vllm", _VLLM), "sglang": Engine("sglang", _SGLANG)}


@pytest.fixture(params=sorted(ENGINES))
def engine(request: pytest.FixtureRequest) -> Engine:
    """Each engine that is installed."""
    pytest.importorskip(request.param)
    return ENGINES[request.param]


@pytest.mark.parametrize("code", [_SPAWN, _FORK], ids=["spawn", "fork"])
def test_a_child_process_calls_our_operator_and_counts_for_itself(
    engine: Engine, run: Callable[..., str], code: str
) -> None:
    """A spawned child loads the plugins anew; a forked one inherits them, and loading again changes nothing."""
    setup = engine.code + _CALLS
    run(setup + code.format(child=setup) if code is _SPAWN else setup + code, **CHOICE)


@pytest.mark.parametrize(("case", "mode"), [
    *((case, "auto") for case in _UNEXPECTED),
    ("vllm-no-register_oot", "strict"),
    ("vllm-a-class-that-is-no-operator", "strict"),
    ("sglang-no-load_model", "strict"),
])  # fmt: skip
def test_an_engine_of_another_make_is_left_alone_aloud(run: Callable[..., str], case: str, mode: str) -> None:
    name = case.split("-")[0]
    pytest.importorskip(name)
    first, sentence = _UNEXPECTED[case]
    said = run(ENGINES[name].code + _CALLS + first + _TRY[name], **CHOICE, FK_PLUGIN=mode)
    assert sentence in said
    if mode == "auto":
        assert "replaced []" in said and "Traceback" not in said and "refused" not in said
    else:
        assert "refused StrictError FK_PLUGIN=strict: " in said


# Our own package, found on the path before the installed one: as after an upgrade that failed half way.
_BROKEN = {
    "adapters-broken": ("fk_adapters/__init__.py", "raise OSError('a library is missing')", "a library is missing"),
    "tasks-broken": ("fk_tasks/__init__.py", "import no_such_module", "No module named 'no_such_module'"),
    "kernels-broken": ("fk_kernels/__init__.py", "raise RuntimeError('half an upgrade')", "half an upgrade"),
}


@pytest.mark.parametrize("case", _BROKEN)
def test_doctor_says_that_a_broken_plugin_is_not_in_force(case: str, tmp_path: Path) -> None:
    """The engines log it among hundreds of lines, or end; who configured kernels must get one sentence from us."""
    file, code, reason = _BROKEN[case]
    (tmp_path / file).parent.mkdir()
    (tmp_path / file).write_text(code)
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, **CHOICE, "PYTHONPATH": path}
    fk = Path(sys.executable).with_name("fk")
    done = subprocess.run([fk, "doctor", "--json"], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    said = [problem for problem in json.loads(done.stdout)["problems"] if reason in problem]
    assert said and all("install" in sentence and "\n" not in sentence for sentence in said)
