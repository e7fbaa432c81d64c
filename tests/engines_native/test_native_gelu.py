"""gelu_and_mul against GeluAndMul.forward_native of both engines, bit for bit."""

import pytest
import torch

from fk_plugin import registry
from fk_tasks.gelu import gelu_and_mul

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
TASK = registry.task("gelu_and_mul")


@pytest.fixture(params=["vllm", "sglang"])
def layer(request):
    """approximate -> the engine's layer."""
    if request.param == "vllm":
        request.getfixturevalue("vllm_config")
        from vllm.model_executor.layers.activation import GeluAndMul
    else:
        pytest.importorskip("sglang", reason="SGLang is not installed")
        from sglang.srt.layers.activation import GeluAndMul
    return lambda approximate: GeluAndMul(approximate=approximate)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(0, 8), (1, 3072), (257, 3072), (2, 3, 10)])
def test_forward_native(layer, same, shape, dtype, approximate):
    x = (torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 4).to(dtype)
    same(gelu_and_mul(x, approximate), layer(approximate).forward_native(x))


@pytest.mark.parametrize("workload", TASK.edge_workloads, ids=lambda w: w.name)
def test_every_edge(layer, same, workload):
    x, approximate, rounds = TASK.make_inputs(workload, "cpu", 0)
    if rounds:
        same(gelu_and_mul(x, approximate), layer(approximate).forward_native(x))


def test_the_comparison_can_fail(layer, same):
    """What the tests above must tell apart: the other form, and the other rounding order."""
    x = torch.randn(64, 512, generator=torch.Generator().manual_seed(1)).bfloat16()
    for wrong in (gelu_and_mul(x, "tanh"), gelu_and_mul(x, "none", False)):
        with pytest.raises(AssertionError, match="of elements differ"):
            same(wrong, layer("none").forward_native(x))
