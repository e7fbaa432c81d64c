"""The norms' references against the engines' own PyTorch code, bit for bit."""

import pytest
import torch

from fk_tasks import norm

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
HIDDEN = 576


@pytest.fixture
def values():
    """x, residual (both slices of a wider buffer) and weight."""

    def make(dtype, weight_dtype=None):
        generator = torch.Generator().manual_seed(0)
        wide_TD = torch.randn((33, 2 * HIDDEN + 8), generator=generator) * 3
        wide_TD[:, ::50] *= 20
        wide_TD = wide_TD.to(dtype)
        weight_D = (1 + 0.3 * torch.randn(HIDDEN, generator=generator)).to(weight_dtype or dtype)
        return wide_TD[:, :HIDDEN], wide_TD[:, HIDDEN + 8 :], weight_D

    return make


@pytest.fixture(scope="module")
def vllm_norm():
    pytest.importorskip("vllm")
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.layernorm import RMSNorm

    with set_current_vllm_config(VllmConfig()):
        yield lambda weight_D, **more: _filled(RMSNorm(HIDDEN, eps=1e-5, dtype=weight_D.dtype, **more), weight_D)


@pytest.fixture(scope="module")
def sglang_norm():
    pytest.importorskip("sglang")
    from sglang.srt.layers.layernorm import RMSNorm

    return lambda weight_D, **more: _filled(RMSNorm(HIDDEN, eps=1e-5, weight_dtype=weight_D.dtype, **more), weight_D)


def _filled(layer, weight_D):
    layer.weight.data.copy_(weight_D)
    return layer


def _same(ours, theirs):
    assert ours.dtype == theirs.dtype
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("weight_dtype", [None, torch.float32], ids=["same", "float32 weight"])
@pytest.mark.parametrize("variance_size", [None, 500])
@pytest.mark.parametrize("dtype", DTYPES)
def test_vllm(vllm_norm, values, dtype, variance_size, weight_dtype):
    x, residual, weight = values(dtype, weight_dtype)
    layer = vllm_norm(weight, var_hidden_size=variance_size)
    with torch.no_grad():
        _same(norm.rms_norm(x, weight, 1e-5, variance_size, "weight"), layer.forward_native(x.clone()))
        ours = norm.fused_add_rms_norm_returning(x, residual, weight, 1e-5, variance_size, "weight")
        theirs = layer.forward_native(x.clone(), residual.clone())
    for a, b in zip(ours, theirs, strict=True):
        _same(a, b)


@pytest.mark.parametrize("cast", [False, True], ids=["once", "input"])
@pytest.mark.parametrize("variance_size", [None, 500])
@pytest.mark.parametrize("dtype", DTYPES)
def test_sglang(sglang_norm, values, dtype, variance_size, cast):
    x, residual, weight = values(dtype)
    rounding = "input" if cast else "once"
    layer = sglang_norm(weight, var_hidden_size=variance_size, cast_x_before_out_mul=cast)
    with torch.no_grad():
        _same(norm.rms_norm(x, weight, 1e-5, variance_size, rounding), layer.forward_native(x.clone()))
        ours = norm.fused_add_rms_norm_returning(x, residual, weight, 1e-5, variance_size, rounding)
        theirs = layer.forward_native(x.clone(), residual.clone())
    for a, b in zip(ours, theirs, strict=True):
        _same(a, b)


def test_sglang_float32_weight_under_input_rounding_widens_the_result(sglang_norm, values):
    x, residual, weight = values(torch.bfloat16, torch.float32)
    layer = sglang_norm(weight, cast_x_before_out_mul=True)
    with torch.no_grad():
        ours = norm.rms_norm(x, weight, 1e-5, None, "input")
        _same(ours, layer.forward_native(x.clone()))
    assert ours.dtype == torch.float32
    with pytest.raises(ValueError, match="no wider than x"):
        norm.fused_add_rms_norm(x, residual, weight, 1e-5, None, "input")


def test_the_rounding_orders_differ(values):
    x, _, weight = values(torch.bfloat16)
    by_weight, once = (norm.rms_norm(x, weight, 1e-5, None, rounding) for rounding in ("weight", "once"))
    share = (by_weight != once).float().mean()
    assert 0.1 < share < 0.5, "an absolute tolerance of 1e-2 does not see this; the bit-for-bit tests above must"


def test_variance_comes_from_the_unrounded_sum(values):
    x, residual, weight = values(torch.bfloat16)
    normed, total = norm.fused_add_rms_norm_returning(x, residual, weight, 1e-5)
    assert torch.equal(total, x + residual)
    assert not torch.equal(normed, norm.rms_norm(total, weight, 1e-5))


def test_in_place_form_writes_both_arguments(edge):
    task, args = edge("fused_add_rms_norm", "aliased-residual")
    x, residual = args[:2]
    assert x.untyped_storage().data_ptr() == residual.untyped_storage().data_ptr()
    expected = norm.fused_add_rms_norm_returning(*args)
    assert task.reference(*args) is None
    assert torch.equal(x, expected[0])
    assert torch.equal(residual, expected[1])


def test_unknown_rounding_is_refused(values):
    x, _, weight = values(torch.float32)
    with pytest.raises(ValueError, match="rounding must be one of"):
        norm.rms_norm(x, weight, 1e-5, None, "wieght")
