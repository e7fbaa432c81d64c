"""rotary_embedding and rope_kv_write against RotaryEmbedding.forward_native of both engines, bit for bit.

vLLM's compiled operator for this machine is compared as well: it rounds once.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fk_plugin import registry
from fk_tasks.rotary import rotary_embedding_returning

ROTARY, FUSED = registry.task("rotary_embedding"), registry.task("rope_kv_write")
EDGES = tuple(w for w in ROTARY.edge_workloads if w.layout != "rounded_once")
DTYPES = ("bfloat16", "float16", "float32")


def _layer(cls, workload, args):
    """The engine's layer with this workload's table in place of its own."""
    axes = workload.axes
    dtype, neox = getattr(torch, workload.dtype), bool(axes["neox"])
    layer = cls(axes["head_size"], axes["rotary"], axes["positions"], axes["base"], neox, dtype)
    layer.cos_sin_cache = args[3].clone()
    return layer


@pytest.fixture(params=["vllm", "sglang"])
def rotary_class(request):
    request.getfixturevalue("vllm_config" if request.param == "vllm" else "sglang_args")
    if request.param == "vllm":
        from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding
    else:
        from sglang.srt.layers.rotary_embedding.base import RotaryEmbedding
    return RotaryEmbedding


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("workload", EDGES, ids=lambda w: w.name)
def test_forward_native(rotary_class, same, workload, dtype):
    workload = replace(workload, dtype=dtype)
    args = ROTARY.make_inputs(workload, "cpu", 0)
    query, key, positions = args[:3]
    if query.numel() == 0 or key.numel() == 0:
        pytest.skip("the engines' code reshapes with -1, which PyTorch refuses for tensors without elements")
    layer = _layer(rotary_class, workload, args)
    theirs = layer.forward_native(positions, query, key)
    for ours, expected in zip(rotary_embedding_returning(*args[:6], True), theirs, strict=True):
        same(ours, expected)


def test_a_call_without_a_key(vllm_config, same):
    """vLLM's takes None for it; SGLang's does not."""
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding

    workload = next(w for w in ROTARY.edge_workloads if w.name == "edge-no-key")
    args = ROTARY.make_inputs(workload, "cpu", 0)
    theirs, none = _layer(RotaryEmbedding, workload, args).forward_native(args[2], args[0])
    assert none is None
    ours, empty = rotary_embedding_returning(*args)
    same(ours, theirs)
    assert empty.shape == (9, 0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["odd-heads", "partial", "interleaved", "interleaved-partial", "three-axes"])
def test_the_engines_own_table(rotary_class, same, name, dtype):
    """The layer computes the table; the task reads it."""
    workload = replace(next(w for w in EDGES if w.name == f"edge-{name}"), dtype=dtype)
    query, key, positions, table, size, neox, _ = ROTARY.make_inputs(workload, "cpu", 0)
    layer = _layer(rotary_class, workload, (None, None, None, table))
    layer.cos_sin_cache = layer._compute_cos_sin_cache().to(query.dtype)
    theirs = layer.forward_native(positions, query, key)
    ours = rotary_embedding_returning(query, key, positions, layer.cos_sin_cache, size, neox, True)
    for mine, expected in zip(ours, theirs, strict=True):
        same(mine, expected)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("name", ["odd-heads", "partial", "interleaved", "interleaved-partial", "three-axes"])
def test_vllms_compiled_operator_rounds_once(vllm_config, same, name, dtype):
    """Without AVX-512 its vectors, which the neox form uses, cut bfloat16 off instead of rounding it."""
    from vllm import _custom_ops as ops

    workload = replace(next(w for w in EDGES if w.name == f"edge-{name}"), dtype=dtype)
    query, key, positions, table, size, neox, _ = ROTARY.make_inputs(workload, "cpu", 0)
    ours = rotary_embedding_returning(query, key, positions, table, size, neox, False)
    if not hasattr(torch.ops._C, "rotary_embedding"):
        pytest.skip("this build of vLLM has no rotary_embedding")
    # Given heads on an axis of their own inside a wider buffer, the CPU build rotates the wrong elements.
    ops.rotary_embedding(positions, query.flatten(1), key.flatten(1), size, table, neox)
    for mine, theirs in zip(ours, (query, key), strict=True):
        if dtype == "float32":  # the compiler may fuse a product and a sum
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-6)
        elif neox and "avx512f" not in Path("/proc/cpuinfo").read_text():
            _cut_off(mine, theirs)
        else:
            same(mine, theirs)


def _cut_off(rounded: torch.Tensor, cut: torch.Tensor) -> None:
    """Every element is the rounded one, or its neighbour towards zero."""
    steps = rounded.view(torch.int16).int() - cut.view(torch.int16).int()  # the sign bit aside, bits grow with |value|
    assert set(steps.unique().tolist()) <= {0, 1}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["odd-size", "padded", "flat-cache", "interleaved-partial"])
def test_rope_kv_write_stores_what_the_layer_returns(rotary_class, same, name, dtype):
    workload = replace(next(w for w in FUSED.edge_workloads if w.name == f"edge-{name}"), dtype=dtype)
    args = FUSED.make_inputs(workload, "cpu", 0)
    query, key, value, query_out, key_out, *caches, positions, table, slots, _, _, _ = args
    layer = _layer(rotary_class, workload, (None, None, None, table))
    expected = layer.forward_native(positions, query, key)
    FUSED.reference(*args)
    same(query_out, expected[0])
    same(key_out, expected[1])
    live = slots >= 0
    for new, cache in zip((expected[1], value), caches, strict=True):
        stored = cache.reshape(-1, *cache.shape[-2:])[slots[live]]
        same(stored.flatten(1), new[live].contiguous())


def test_the_comparison_can_fail(rotary_class, same):
    """What the tests above must tell apart: the other pairing, and the other rounding order."""
    workload = next(w for w in EDGES if w.name == "edge-end-positions")
    args = ROTARY.make_inputs(workload, "cpu", 0)
    theirs = _layer(rotary_class, workload, args).forward_native(args[2], args[0], args[1])
    for variant in ((False, True), (True, False)):
        with pytest.raises(AssertionError, match="of elements differ"):
            same(rotary_embedding_returning(*args[:5], *variant)[0], theirs[0])
