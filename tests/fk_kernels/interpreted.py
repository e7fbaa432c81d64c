"""Run by test_triton_kernels.py with TRITON_INTERPRET=1; see there."""

import contextlib
import os
from dataclasses import replace

import pytest
import torch

from fk_plugin import registry

KERNELS = {
    "rms_norm": "triton_rows",
    "fused_add_rms_norm": "triton_rows",
    "softmax": "triton_chunks",
    "store_kv_cache": "triton_tiles",
    "grouped_gemm": "triton_tiles",
    "gelu_and_mul": "triton_rows",
    "layer_norm": "triton_rows",
}
# Wide enough to say nothing new and to take seconds.
SLOW = ("edge-hidden-7168", "edge-hidden-3072")
# float16 where roundings or masks differ from float32's; everywhere would double the time.
HALF = ("edge-odd-size", "edge-sliced", "edge-wide-weight", "edge-rounding-once", "edge-rounding-input", "edge-masked")
CASES = [
    (task, replace(w, dtype=dtype, name=f"{w.name}-{dtype}"))
    for task in map(registry.task, KERNELS)
    for w in task.edge_workloads
    for dtype in ("float32", "float16")
    if w.name not in SLOW and (dtype == "float32" or w.name in HALF)
]


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    assert os.environ.get("TRITON_INTERPRET") == "1", "run test_triton_kernels.py"
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())


@pytest.mark.parametrize(("task", "workload"), CASES, ids=lambda v: v.name)
def test_against_the_oracle(check, task, workload):
    candidate = registry.kernel(task.name, KERNELS[task.name])
    reason = candidate.guard(*task.make_inputs(workload, "cpu", 0))
    if workload.layout in ("strided", "transposed") and task.name != "softmax":
        assert "not contiguous" in reason
        return
    assert reason is None
    check(task, candidate.fn, workload)


@pytest.mark.parametrize("special", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("task_name", ["rms_norm", "fused_add_rms_norm", "softmax"])
def test_nan_and_infinity_fall_in_the_same_places(results, task_name, special):
    task, width = registry.task(task_name), 5000
    x = torch.randn((4, width), generator=torch.Generator().manual_seed(0))
    x[1, 17] = x[2, width - 1] = special
    x[3] = special
    rest = {"rms_norm": (torch.ones(width), 1e-5), "softmax": ()}
    rest["fused_add_rms_norm"] = (torch.ones_like(x), *rest["rms_norm"])
    kernel = registry.kernel(task_name, KERNELS[task_name])
    ours = results(task, kernel.fn, tuple(a.clone() if torch.is_tensor(a) else a for a in (x, *rest[task_name])))
    theirs = results(task, task.reference, (x, *rest[task_name]))
    for a, b in zip(ours, theirs, strict=True):
        for place in (torch.isnan, torch.isposinf, torch.isneginf):
            assert torch.equal(place(a), place(b))


@pytest.mark.parametrize("task_name", ["rms_norm", "fused_add_rms_norm", "softmax"])
def test_rows_alone_equal_rows_in_a_batch(results, task_name):
    task, kernel = registry.task(task_name), registry.kernel(task_name, KERNELS[task_name])
    workload = (
        replace(next(w for w in task.edge_workloads if w.name == "edge-float32"), dtype="float32")
        if (task_name != "softmax")
        else next(w for w in task.edge_workloads if w.name == "edge-above-block")
    )
    args = task.make_inputs(workload, "cpu", 0)
    rows = task.tokens(*args)

    def cut(start, stop):
        return tuple(a[start:stop].clone() if torch.is_tensor(a) and a.shape[0] == rows else a for a in args)

    alone = [results(task, kernel.fn, cut(i, i + 1)) for i in range(rows)]
    whole = results(task, kernel.fn, cut(0, rows))
    for i, parts in enumerate(alone):
        assert all(torch.equal(one[0], many[i]) for one, many in zip(parts, whole, strict=True))


@pytest.mark.parametrize("name", ["padded", "all-padded", "head-major-cache", "key-longer-than-slots"])
def test_cache_write_stays_inside_its_slots(name):
    task = registry.task("store_kv_cache")
    workload = replace(next(w for w in task.edge_workloads if w.name == f"edge-{name}"), dtype="float16")
    key, value, *caches, slots = task.make_inputs(workload, "cpu", 0)
    fenced = [torch.full((3, *c.shape), 5.0, dtype=c.dtype) for c in caches]
    kernel = registry.kernel("store_kv_cache", "triton_tiles")
    kernel.fn(key, value, fenced[0][1], fenced[1][1], slots)
    past = slots + caches[0].shape[0] * caches[0].shape[1] + 1
    kernel.fn(key, value, fenced[0][1], fenced[1][1], torch.where(slots < 0, slots, past))
    for buffer in fenced:
        assert (buffer[0] == 5).all()
        assert (buffer[2] == 5).all()
        changed = (buffer[1] != 5).flatten(-2).any(dim=-1).flatten().nonzero().flatten().tolist()
        assert changed == sorted(s for s in slots.tolist() if s >= 0)


def test_out_of_the_in_place_norm():
    task = registry.task("fused_add_rms_norm")
    args = task.make_inputs(next(w for w in task.edge_workloads if w.name == "edge-float32"), "cpu", 0)
    before = args[0].clone(), args[1].clone()
    out = torch.empty_like(args[0]), torch.empty_like(args[1])
    registry.kernel("fused_add_rms_norm", "triton_rows").fn(*args, out=out)
    assert torch.equal(args[0], before[0])
    assert torch.equal(args[1], before[1])
    expected = task.overloads[1].reference(*args)
    torch.testing.assert_close(out[0], expected[0])
    assert torch.equal(out[1], expected[1])
