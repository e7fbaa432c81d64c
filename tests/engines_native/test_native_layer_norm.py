"""layer_norm against vLLM's LayerNorm.forward and SGLang's LayerNorm.forward_native, bit for bit."""

import inspect

import pytest
import torch

from fk_plugin import registry
from fk_tasks.layer_norm import layer_norm

TASK = registry.task("layer_norm")
EDGES = tuple(w for w in TASK.edge_workloads)


def _fill(layer, weight, bias):
    with torch.no_grad():
        if layer.weight is not None:
            layer.weight.copy_(1.0 if weight is None else weight)
        if layer.bias is not None:
            layer.bias.copy_(0.0 if bias is None else bias)
    return layer


def _dtyped(workload, dtype):
    x, weight, bias, eps = TASK.make_inputs(workload, "cpu", 0)
    same_dtype = workload.layout == "same_dtype"
    parameters = (None if p is None else p.to(dtype if same_dtype else torch.float32) for p in (weight, bias))
    return x.to(dtype), *parameters, eps


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("workload", EDGES, ids=lambda w: w.name)
def test_vllm(vllm_config, same, workload, dtype):
    from vllm.model_executor.layers.layernorm import LayerNorm

    x, weight, bias, eps = _dtyped(workload, dtype)
    if "elementwise_affine" in inspect.signature(LayerNorm).parameters:  # since 0.32
        if weight is None and bias is not None:
            pytest.skip("vLLM's LayerNorm has no bias without a weight")
        parameters = torch.float32 if weight is None else weight.dtype
        layer = LayerNorm(x.shape[-1], eps, weight is not None, bias is not None, dtype=parameters)
    elif weight is None or bias is None or weight.dtype != torch.float32:
        pytest.skip("vLLM's LayerNorm has float32 weight and bias, always")
    else:
        layer = LayerNorm(x.shape[-1], eps)
    with torch.no_grad():
        same(layer_norm(x, weight, bias, eps), _fill(layer, weight, bias).forward(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("workload", EDGES, ids=lambda w: w.name)
def test_sglang(same, workload, dtype):
    pytest.importorskip("sglang", reason="SGLang is not installed")
    from sglang.srt.layers.layernorm import LayerNorm

    x, weight, bias, eps = _dtyped(workload, dtype)
    holder = weight if weight is not None else bias
    parameters = torch.float32 if holder is None else holder.dtype
    layer = LayerNorm(x.shape[-1], eps, weight is not None, bias is not None, dtype=parameters)
    with torch.no_grad():
        same(layer_norm(x, weight, bias, eps), _fill(layer, weight, bias).forward_native(x))


def test_the_comparison_can_fail(same):
    """What the tests above must tell apart: the normalised value rounded before weight and bias."""
    x, weight, bias, eps = TASK.make_inputs(EDGES[1], "cpu", 0)
    early = (layer_norm(x, None, None, eps) * weight.bfloat16() + bias.bfloat16()).bfloat16()
    with pytest.raises(AssertionError, match="of elements differ"):
        same(layer_norm(x, weight, bias, eps), early)
