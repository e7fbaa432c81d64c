"""The C kernels of gelu_and_mul, layer_norm, rotary_embedding and rope_kv_write beyond their edge workloads."""

from dataclasses import replace

import pytest
import torch

from fk_plugin import registry
from fk_plugin.dispatch import operator

KERNELS = {
    "gelu_and_mul": "cpu_fused",
    "layer_norm": "cpu_rows",
    "rotary_embedding": "cpu_pairs",
    "rope_kv_write": "cpu_tokens",
}
ROTARY = ("rotary_embedding", "rope_kv_write")
SPECIAL = (float("nan"), float("inf"), -float("inf"), 0.0, -0.0, -200.0, 200.0, 1e-30)


@pytest.fixture
def made():
    """(task name, edge name, dtype) -> (task, kernel's function, arguments)."""

    def make(task_name, edge, dtype="bfloat16"):
        task, kernel = registry.task(task_name), registry.kernel(task_name, KERNELS[task_name])
        kernel.prepare()
        workload = replace(next(w for w in task.edge_workloads if w.name == f"edge-{edge}"), dtype=dtype)
        return task, kernel.fn, task.make_inputs(workload, "cpu", 0)

    return make


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("edge", ["odd-size", "interleaved-partial", "rounded-once", "float32-table"])
@pytest.mark.parametrize("task_name", ROTARY)
def test_bits_equal_the_references(results, made, task_name, edge, dtype):
    task, fn, args = made(task_name, edge, dtype)
    again = made(task_name, edge, dtype)[2]
    for ours, theirs in zip(results(task, fn, args), results(task, task.reference, again), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("task_name", KERNELS)
def test_rows_alone_equal_rows_in_a_batch(results, made, task_name):
    edge = "partial" if task_name in ROTARY else "odd-size"
    task, fn, args = made(task_name, edge)
    whole = results(task, fn, args)
    for i in range(task.tokens(*args)):
        fresh = made(task_name, edge)[2]
        cut = task.take_rows(fresh, i, i + 1) if task.take_rows else (fresh[0][i : i + 1], *fresh[1:])
        alone = results(task, fn, cut)
        assert all(torch.equal(one[0], many[i]) for one, many in zip(alone[:2], whole[:2], strict=True))


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_gelu_puts_nan_and_infinity_where_the_reference_does(dtype, approximate):
    special = torch.tensor(SPECIAL).to(dtype)
    gate, up = special.repeat_interleave(8), special.repeat(8)
    if approximate == "none":  # PyTorch's vectorised erf form gives NaN for plus infinity, its scalar one infinity
        gate, up = gate[gate != torch.inf], up[gate != torch.inf]
    x = torch.cat([gate, up]).unsqueeze(0)
    got = registry.kernel("gelu_and_mul", "cpu_fused").fn(x, approximate)
    want = registry.task("gelu_and_mul").reference(x, approximate)
    for place in (torch.isnan, torch.isposinf, torch.isneginf):
        assert torch.equal(place(got), place(want))


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_keeps_its_accuracy_far_below_zero(approximate):
    gate = torch.linspace(-5.5, 5.5, 4001)
    x = torch.cat([gate, torch.ones_like(gate)]).unsqueeze(0)
    exact = registry.task("gelu_and_mul").oracle(x.double(), approximate)
    got = registry.kernel("gelu_and_mul", "cpu_fused").fn(x, approximate).double()
    assert float(((got - exact).abs() / exact.abs().clamp(min=1e-30)).max()) < 4e-6


@pytest.mark.parametrize("task_name", ["gelu_and_mul", "layer_norm"])
def test_out_is_filled_and_nothing_beside_it(made, task_name):
    _, fn, args = made(task_name, "odd-size")
    expected = fn(*args)
    strided = torch.full((expected.shape[0], 2 * expected.shape[1]), 7.0, dtype=expected.dtype)
    fn(*args, out=strided[:, ::2])
    assert torch.equal(strided[:, ::2], expected)
    assert (strided[:, 1::2] == 7).all()
    out = torch.empty_like(expected)
    assert fn(*args, out=out) is out
    assert torch.equal(out, expected)


def test_layer_norm_refuses_a_weight_narrower_than_x():
    x, weight = torch.randn(3, 8), torch.ones(8, dtype=torch.bfloat16)
    assert registry.kernel("layer_norm", "cpu_rows").guard(x, weight, None, 1e-5) == "weight bfloat16 beside x float32"


def test_rotation_writes_through_live_views_and_leaves_the_value(made):
    _, fn, (query, key, *rest) = made("rotary_embedding", "interleaved-partial")
    whole = query.as_strided((query.shape[0], query.stride(0)), (query.stride(0), 1), 0)
    before = whole.clone()
    fn(query, key, *rest)
    changed = (whole != before).any(dim=0).nonzero().flatten()
    assert 0 < int(changed.max()) < query.shape[1] + key.shape[1], "the value lies behind query and key"
    assert int((changed % rest[2]).max()) < rest[1].shape[1], "dimensions that are not rotated"


@pytest.mark.parametrize("task_name", ROTARY)
def test_slices_of_an_empty_projection(made, task_name):
    task, fn, args = made(task_name, "one-row")
    fn(*task.take_rows(args, 0, 0))


@pytest.mark.parametrize("task_name", ROTARY)
def test_a_position_outside_the_table_leaves_its_row_alone(made, task_name):
    _, fn, args = made(task_name, "one-row")
    at = next(i for i, a in enumerate(args) if torch.is_tensor(a) and a.dtype == torch.int64)
    for outside in (-1, args[at + 1].shape[0]):
        before = [a.clone() if torch.is_tensor(a) else a for a in args]
        fn(*args[:at], torch.full_like(args[at], outside), *args[at + 1 :])
        assert all(torch.equal(a, b) for a, b in zip(args, before, strict=True) if torch.is_tensor(a))


@pytest.mark.parametrize("edge", ["padded", "all-padded", "flat-cache", "odd-page"])
def test_cache_write_stays_inside_its_slots(made, edge):
    _, fn, args = made("rope_kv_write", edge)
    caches, slots = args[5:7], args[9]
    fenced = [torch.full((3, *c.shape), 5.0, dtype=c.dtype) for c in caches]
    for cut in (slots, torch.where(slots < 0, slots, slots + 10**6)):
        fn(*args[:5], fenced[0][1], fenced[1][1], *args[7:9], cut, *args[10:])
    for buffer in fenced:
        assert (buffer[0] == 5).all()
        assert (buffer[2] == 5).all()
        changed = (buffer[1] != 5).flatten(-2).any(dim=-1).flatten().nonzero().flatten().tolist()
        assert changed == sorted(s for s in slots.tolist() if s >= 0)


def test_the_operators_returning_form_leaves_its_arguments(made):
    task, _, args = made("rotary_embedding", "partial")
    before = args[0].clone(), args[1].clone()
    found = operator(task)
    found.use(registry.kernel("rotary_embedding", "cpu_pairs"))
    try:
        got = torch.ops.fk.rotary_embedding.returning(*args)
    finally:
        found.use(None)
    assert torch.equal(args[0], before[0])
    assert torch.equal(args[1], before[1])
    assert all(torch.equal(a, b) for a, b in zip(got, task.overloads[1].reference(*args), strict=True))
