"""Run by test_triton_kernels.py with TRITON_INTERPRET=1; see there. The rotary operators."""

import contextlib
import os
from dataclasses import replace

import pytest
import torch

from fk_plugin import registry

KERNELS = {"rotary_embedding": "triton_heads", "rope_kv_write": "triton_tokens"}
# float16 where roundings or masks differ from float32's; everywhere would double the time.
HALF = ("edge-odd-size", "edge-interleaved-partial", "edge-large", "edge-rounded-once", "edge-float32-table")
CASES = [
    (task, replace(w, dtype=dtype, name=f"{w.name}-{dtype}"))
    for task in map(registry.task, KERNELS)
    for w in task.edge_workloads
    for dtype in ("float32", "float16")
    if dtype == "float32" or w.name in HALF
]


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    assert os.environ.get("TRITON_INTERPRET") == "1", "run test_triton_kernels.py"
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())


@pytest.fixture
def made():
    """(task name, edge name) -> (task, kernel's function, arguments in float32)."""

    def make(task_name, edge, dtype="float32"):
        task = registry.task(task_name)
        workload = replace(next(w for w in task.edge_workloads if w.name == f"edge-{edge}"), dtype=dtype)
        return task, registry.kernel(task_name, KERNELS[task_name]).fn, task.make_inputs(workload, "cpu", 0)

    return make


@pytest.mark.parametrize(("task", "workload"), CASES, ids=lambda v: v.name)
def test_against_the_oracle(check, task, workload):
    candidate = registry.kernel(task.name, KERNELS[task.name])
    assert candidate.guard(*task.make_inputs(workload, "cpu", 0)) is None
    check(task, candidate.fn, workload)


@pytest.mark.parametrize("edge", ["odd-size", "interleaved-partial", "rounded-once", "float32-table"])
@pytest.mark.parametrize("task_name", KERNELS)
def test_float16_bits_equal_the_references(results, made, task_name, edge):
    """Every step but the sum of two rounded products is exact in float32, so the rounding order shows in the bits."""
    task, fn, args = made(task_name, edge, "float16")
    _, _, again = made(task_name, edge, "float16")
    for ours, theirs in zip(results(task, fn, args), results(task, task.reference, again), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("task_name", KERNELS)
def test_rows_alone_equal_rows_in_a_batch(results, made, task_name):
    task, fn, args = made(task_name, "partial")
    rows = task.tokens(*args)
    whole = results(task, fn, made(task_name, "partial")[2])
    for i in range(rows):
        cut = task.take_rows(made(task_name, "partial")[2], i, i + 1)
        alone = results(task, fn, cut)
        assert all(torch.equal(one[0], many[i]) for one, many in zip(alone[:2], whole[:2], strict=True))


@pytest.mark.parametrize("edge", ["partial", "interleaved-partial"])
def test_rotation_leaves_the_rest_of_the_projection_alone(made, edge):
    _, fn, args = made("rotary_embedding", edge)
    query, key, size, rotary = args[0], args[1], args[4], args[3].shape[1]
    whole = query.as_strided((query.shape[0], query.stride(0)), (query.stride(0), 1), 0)
    before = whole.clone()
    fn(*args)
    changed = (whole != before).any(dim=0).nonzero().flatten()
    assert int(changed.max()) < query.shape[1] + key.shape[1], "the value behind query and key"
    assert (changed % size).max() < rotary, "dimensions that are not rotated"


def test_a_position_outside_the_table_leaves_its_row_alone(made):
    for task_name in KERNELS:
        _, fn, args = made(task_name, "one-row")
        at = next(i for i, a in enumerate(args) if torch.is_tensor(a) and a.dtype == torch.int64)
        table = args[at + 1]
        for outside in (-1, table.shape[0]):
            before = [a.clone() if torch.is_tensor(a) else a for a in args]
            fn(*args[:at], torch.full_like(args[at], outside), *args[at + 1 :])
            assert all(torch.equal(a, b) for a, b in zip(args, before, strict=True) if torch.is_tensor(a))


@pytest.mark.parametrize("edge", ["padded", "all-padded", "flat-cache", "odd-page"])
def test_cache_write_stays_inside_its_slots(made, edge):
    _, fn, args = made("rope_kv_write", edge)
    caches, slots = args[5:7], args[9]
    fenced = [torch.full((3, *c.shape), 5.0) for c in caches]
    for cut in (slots, torch.where(slots < 0, slots, slots + 10**6)):
        fn(*args[:5], fenced[0][1], fenced[1][1], *args[7:9], cut, *args[10:])
    for buffer in fenced:
        assert (buffer[0] == 5).all()
        assert (buffer[2] == 5).all()
        changed = (buffer[1] != 5).flatten(-2).any(dim=-1).flatten().nonzero().flatten().tolist()
        assert changed == sorted(s for s in slots.tolist() if s >= 0)


@pytest.mark.parametrize("edge", ["odd-size", "interleaved-partial", "three-axes", "no-key", "separate"])
def test_writes_elsewhere_and_leaves_its_arguments_alone(made, edge):
    """What the operator's returning form asks for; a row with a position outside the table comes back as it was."""
    task, fn, args = made("rotary_embedding", edge)
    args[2][-1] = args[3].shape[0]
    before = [a.clone() for a in args[:2]]
    outs = tuple(torch.full_like(a, float("nan"), memory_format=torch.contiguous_format) for a in args[:2])
    fn(*args, out=outs)
    assert all(torch.equal(a, b) for a, b in zip(args[:2], before, strict=True))
    inside = task.take_rows(args, 0, task.tokens(*args) - 1)
    expected = task.overloads[1].reference(*inside)
    for out, want, old in zip(outs, expected, before, strict=True):
        torch.testing.assert_close(out[:-1], want)
        assert torch.equal(out[-1], old[-1])
