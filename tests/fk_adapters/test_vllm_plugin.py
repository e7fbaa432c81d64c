"""The vLLM plugin function: twice is once, the operator keeps its name, another plugin's class stays."""

from collections.abc import Callable

import pytest

pytest.importorskip("vllm")

_TWICE = """
from vllm.model_executor.custom_op import op_registry_oot
from fk_adapters.vllm.plugin import register
register(); register()
import torch, vllm
held = op_registry_oot["SiluAndMul"]
assert held.__name__ == "FkSiluAndMul", held
assert held.name == "silu_and_mul", held.name  # register_oot writes the class name over it
assert "silu_and_mul=cpu_fused@" in vllm.envs.environment_variables["VLLM_FK_PLUGIN_FINGERPRINT"]()
assert hasattr(torch.ops.fk, "silu_and_mul")
print("ok")
"""

_FOREIGN = """
from vllm.model_executor.custom_op import CustomOp, op_registry_oot
from vllm.model_executor.layers.activation import SiluAndMul
@CustomOp.register_oot(name="SiluAndMul")
class Theirs(SiluAndMul):
    pass
from fk_adapters.vllm.plugin import register
try:
    register()
except Exception as error:
    print(type(error).__name__, error)
assert op_registry_oot["SiluAndMul"] is Theirs
print("ok")
"""

_UNCONFIGURED = """
import sys
from fk_adapters.vllm.plugin import register
before = set(sys.modules)
register()
from vllm.model_executor.custom_op import op_registry_oot
assert op_registry_oot == {}
import vllm
assert "VLLM_FK_PLUGIN_FINGERPRINT" not in vllm.envs.environment_variables
print("ok")
"""


def test_installing_twice_is_harmless_and_the_name_survives(run: Callable[..., str]) -> None:
    assert "ok" in run(_TWICE, FK_KERNELS="silu_and_mul=cpu_fused")


@pytest.mark.parametrize("mode", ["auto", "strict"])
def test_another_plugin_in_the_slot_keeps_it(run: Callable[..., str], mode: str) -> None:
    said = run(_FOREIGN, FK_KERNELS="silu_and_mul=cpu_fused", FK_PLUGIN=mode)
    sentence = "silu_and_mul: SiluAndMul is already replaced by __main__.Theirs"
    assert sentence in said
    assert ("StrictError" in said) == (mode == "strict")


def test_without_configuration_nothing_is_touched(run: Callable[..., str]) -> None:
    assert "ok" in run(_UNCONFIGURED)
