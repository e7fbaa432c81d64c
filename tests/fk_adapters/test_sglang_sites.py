"""Every class of SGLang that a row names, built as SGLang does: our operator is called, the numbers are SGLang's."""

from collections.abc import Callable
from importlib.metadata import version

import pytest
import torch

from fk_plugin import registry

pytest.importorskip("sglang")

ALL = (
    "rms_norm=cpu_rows,fused_add_rms_norm=cpu_rows,layer_norm=cpu_rows,gelu_and_mul=cpu_fused,"
    "rotary_embedding=cpu_pairs,silu_and_mul=cpu_fused"
)

_SETUP = """
import torch
from types import SimpleNamespace
from fk_plugin import proof
from sglang.srt.layers import activation, layernorm
from sglang.srt.layers.rotary_embedding import base
for module in (activation, base):
    module.get_server_args = lambda: SimpleNamespace(rl_on_policy_target=None)
native = {
    "RMSNorm": layernorm.RMSNorm.forward_native, "LayerNorm": layernorm.LayerNorm.forward_native,
    "GeluAndMul": activation.GeluAndMul.forward_native, "SiluAndMul": activation.SiluAndMul.forward_native,
    "RotaryEmbedding": base.RotaryEmbedding.forward_native,
}
from fk_adapters.sglang.plugin import _bound, register
from sglang.srt.plugins.hook_registry import HookRegistry
register()
register()
HookRegistry.apply_hooks()
def seen():
    return {task: usage.seen for task, usage in proof.usage(proof.snapshot()).items()}
def same(ours, theirs):
    assert ours.dtype == theirs.dtype and torch.equal(ours, theirs), (ours, theirs)
torch.manual_seed(0)
x, residual = (torch.randn(7, 64, dtype=torch.bfloat16) for _ in range(2))
"""

_NORMS = """
for arguments in ({}, {"cast_x_before_out_mul": True}, {"var_hidden_size": 32}):
    layer = layernorm.RMSNorm(64, 1e-5, weight_dtype=torch.bfloat16, **arguments)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(64))
    assert _bound("rms_norm", layer) and _bound("fused_add_rms_norm", layer)
    same(layer(x), native["RMSNorm"](layer, x))
    for ours, theirs in zip(layer(x.clone(), residual.clone()), native["RMSNorm"](layer, x, residual), strict=True):
        same(ours, theirs)
assert seen() == {"rms_norm": 3, "fused_add_rms_norm": 3}, seen()
layer = layernorm.LayerNorm(64)
with torch.no_grad():
    layer.weight.copy_(torch.randn(64)), layer.bias.copy_(torch.randn(64))
assert _bound("layer_norm", layer)
difference = (layer(x).float() - native["LayerNorm"](layer, x).float()).abs().max()
assert difference <= 0.04, difference
assert seen()["layer_norm"] == 1
"""

_LEFT_ALONE = """
wide = layernorm.RMSNorm(64, weight_dtype=torch.bfloat16, fp32_residual=True)
out, total = wide(x.clone(), residual.clone())
assert total.dtype == torch.float32
plain = layernorm.RMSNorm(64, weight_dtype=torch.bfloat16)
third = torch.randn(7, 64, dtype=torch.bfloat16)
for ours, theirs in zip(plain(x, residual, third), native["RMSNorm"](plain, x, residual, third), strict=True):
    same(ours, theirs)
float_weight = layernorm.RMSNorm(64, weight_dtype=torch.float32, cast_x_before_out_mul=True)
for ours, theirs in zip(float_weight(x, residual), native["RMSNorm"](float_weight, x, residual), strict=True):
    same(ours, theirs)
assert seen() == {}, seen()
"""

_OTHERS = """
for name, bound in (("GeluAndMul", "gelu_and_mul"), ("SiluAndMul", "silu_and_mul")):
    layer = getattr(activation, name)()
    assert _bound(bound, layer)
    assert (layer(x).float() - native[name](layer, x).float()).abs().max() < 0.02, name
from sglang.srt.layers.rotary_embedding.rope_variant import Llama3RotaryEmbedding
head = (64, 64, 256, 10000.0, True)
positions = torch.arange(7)
query, key = torch.randn(7, 256, dtype=torch.bfloat16), torch.randn(7, 128, dtype=torch.bfloat16)
for layer in (
    base.RotaryEmbedding(*head, torch.bfloat16),
    Llama3RotaryEmbedding(*head, torch.bfloat16, 8.0, 1.0, 4.0, 128),
):
    assert _bound("rotary_embedding", layer)
    expected = native["RotaryEmbedding"](layer, positions, query.clone(), key.clone())
    for ours, theirs in zip(layer(positions, query.clone(), key.clone()), expected, strict=True):
        same(ours, theirs)
layer(positions, query.clone(), key.clone(), positions)  # offsets: SGLang's own
assert seen() == {"gelu_and_mul": 1, "silu_and_mul": 1, "rotary_embedding": 2}, seen()
"""

_QUANTISES = """
layer = layernorm.RMSNorm(64, 1e-5, weight_dtype=torch.bfloat16)
linear = torch.nn.Linear(64, 64)
layer.fuse_input_quant(linear)
layer(x), layer(x.clone(), residual.clone())
assert seen() == {"rms_norm": 1, "fused_add_rms_norm": 1}, seen()  # the projection takes no FP8
# A projection with a static scale: SGLang's own must run.
from sglang.srt.layers.quantization.fp8 import Fp8LinearMethod
linear.quant_method, linear.input_scale = Fp8LinearMethod.__new__(Fp8LinearMethod), torch.ones(())
assert layernorm._fp8_static_input_scale(linear) is not None
same(layer(x), native["RMSNorm"](layer, x))
layer.__dict__.pop("_quant_linear")
layer(x, None, None, linear)
assert seen() == {"rms_norm": 1, "fused_add_rms_norm": 1}, seen()
layer(x)
assert seen()["rms_norm"] == 2, seen()
"""

_FORCED = """
from sglang.kernels.fused_op import set_fused_op_backend
from sglang.kernels.spec import KernelBackend
layer = activation.SiluAndMul()
assert layer._forward_method is None and _bound("silu_and_mul", layer)
assert layer._forward_method is None, "asking must not decide"
set_fused_op_backend(KernelBackend.TORCH_COMPILE)
assert not _bound("silu_and_mul", layer)
set_fused_op_backend(KernelBackend.TORCH)  # forward_native, which the hook is around here
assert _bound("silu_and_mul", layer)
set_fused_op_backend(KernelBackend.TRITON)  # not implemented: SGLang goes on as if nothing was forced
assert _bound("silu_and_mul", layer)
set_fused_op_backend(None)
layer._forward_method = lambda x: x  # an instance pinned to another path
assert not _bound("silu_and_mul", layer)
"""


@pytest.mark.parametrize("code", [_QUANTISES, _FORCED], ids=["quantises", "forced"])
def test_what_base_fused_op_added(run: Callable[..., str], code: str) -> None:
    if all("quant_linear" not in row.signature for row in registry.adapter("sglang").select(version("sglang"), "cpu")):
        pytest.skip(f"the layers of SGLang {version('sglang')} are not of that class")
    run(_SETUP + code, FK_KERNELS=ALL)


def test_the_fallback_of_a_norm_with_a_residual_takes_any_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel takes rows; what it writes must reach the caller's tensors, contiguous or not."""
    from sglang.srt.layers import layernorm

    from fk_adapters.sglang import fallbacks

    def kernel(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> None:
        assert x.dim() == residual.dim() == 2
        residual.add_(x)
        x.mul_(2)

    monkeypatch.setattr(layernorm, "fused_add_rmsnorm", kernel, raising=False)
    run = fallbacks._fused_add_rms_norm(lambda *_: pytest.fail("the reference was called"))
    for x in (torch.ones(3, 8), torch.ones(2, 3, 8), torch.ones(3, 2, 8).transpose(0, 1)):
        residual = torch.ones(x.shape)
        run(x, residual, torch.ones(8), 1e-5, None, "once")
        assert bool((x == 2).all() and (residual == 2).all())


@pytest.mark.parametrize("code", [_NORMS, _LEFT_ALONE, _OTHERS], ids=["norms", "left-alone", "others"])
def test_each_class_calls_our_operator(run: Callable[..., str], code: str) -> None:
    run(_SETUP + code, FK_KERNELS=ALL)
