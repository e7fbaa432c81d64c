"""grouped_gemm: routing, empty experts, rows that belong to nobody, and the engines' own loop."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from fk_plugin import registry
from fk_tasks import moe

TASK = registry.task("grouped_gemm")


@pytest.mark.parametrize("workload", TASK.edge_workloads, ids=lambda w: w.name)
def test_every_row_meets_its_expert(workload):
    x, weight, offsets = TASK.make_inputs(workload, "cpu", 0)
    out = TASK.reference(x, weight, offsets)
    owner = torch.searchsorted(offsets, torch.arange(x.shape[0], dtype=torch.int32), right=True)
    for row, expert in enumerate(owner.tolist()):
        expected = weight[expert].double() @ x[row].double() if expert < weight.shape[0] else torch.zeros(out.shape[1])
        torch.testing.assert_close(out[row].double(), expected.double(), rtol=2e-2, atol=2e-2)
    assert not out[int(offsets[-1]) :].any()


@pytest.mark.parametrize("workload", TASK.workloads, ids=lambda w: w.name)
def test_routings_hand_out_every_row(workload):
    counts = moe.rows_per_expert(workload)
    assert sum(counts) == workload.axes["rows"]
    assert len(counts) == workload.axes["experts"]
    largest = max(counts)
    if workload.layout == "one_expert":
        assert largest == workload.axes["rows"]
    elif workload.layout == "balanced":
        assert largest - min(counts) <= 1
    else:
        # The harmonic series gives the first of 128 experts 18 % of the rows, and the first of 32 25 %.
        assert largest >= 0.18 * workload.axes["rows"]


def test_more_experts_than_rows_leaves_some_empty(edge):
    _, (_, _, offsets) = edge("grouped_gemm", "more-experts-than-rows")
    sizes = torch.diff(offsets, prepend=torch.zeros(1, dtype=torch.int32))
    assert (sizes == 0).any()
    assert int(sizes.sum()) == 5


def _silu_and_mul(x):
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * up


def test_sglang_native_loop_bit_for_bit(monkeypatch):
    native = pytest.importorskip("sglang.srt.layers.moe.fused_moe_native")
    # SGLang's activation layer wants a running server's arguments; it is not what this test is about.
    monkeypatch.setattr(native, "SiluAndMul", lambda: _silu_and_mul)
    generator = torch.Generator().manual_seed(0)
    tokens, experts, hidden, inner = 17, 6, 64, 32

    def random(*shape):
        return (torch.randn(shape, generator=generator) * 0.2).bfloat16()

    layer = SimpleNamespace(
        num_experts=experts, w13_weight=random(experts, 2 * inner, hidden), w2_weight=random(experts, hidden, inner)
    )
    x = random(tokens, hidden)
    ids = torch.stack([torch.randperm(experts, generator=generator)[:2] for _ in range(tokens)])
    weights = torch.rand((tokens, 2), generator=generator)
    config = SimpleNamespace(apply_router_weight_on_input=False, activation="silu", gemm1_alpha=None)
    theirs = native.moe_forward_native(layer, x, (weights, ids, None), config)

    order = ids.view(-1).argsort()
    offsets = torch.bincount(ids.view(-1), minlength=experts).cumsum(0).int()
    gate_up = moe.grouped_gemm(x[order // 2], layer.w13_weight, offsets)
    out = moe.grouped_gemm(_silu_and_mul(gate_up), layer.w2_weight, offsets)
    unsorted = torch.empty_like(out)
    unsorted[order] = out
    ours = (unsorted.view(tokens, 2, hidden).float() * weights[..., None]).sum(dim=1).bfloat16()
    assert torch.equal(ours, theirs)
