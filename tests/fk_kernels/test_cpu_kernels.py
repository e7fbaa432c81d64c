"""The CPU kernels and canaries on every edge workload, in every dtype."""

from dataclasses import replace

import pytest
import torch

from fk_plugin import registry

KERNELS = {
    "rms_norm": "cpu_rows",
    "fused_add_rms_norm": "cpu_rows",
    "softmax": "cpu_chunks",
    "store_kv_cache": "cpu_copy",
    "gelu_and_mul": "cpu_fused",
    "layer_norm": "cpu_rows",
    "rotary_embedding": "cpu_pairs",
    "rope_kv_write": "cpu_tokens",
}
DTYPES = ("bfloat16", "float16", "float32")
CASES = [
    (task, replace(w, dtype=dtype, name=f"{w.name}-{dtype}"))
    for task in map(registry.task, KERNELS)
    for w in task.edge_workloads
    for dtype in DTYPES
]
# Layouts that the C kernels leave to the fallback, and what their guards must say.
REFUSED = {"strided": "not contiguous", "transposed": "not contiguous"}


@pytest.fixture(scope="module")
def kernel():
    def load(task_name):
        found = registry.kernel(task_name, KERNELS[task_name])
        found.prepare()
        return found

    return load


@pytest.mark.parametrize(("task", "workload"), CASES, ids=lambda v: v.name)
def test_against_the_oracle(kernel, check, task, workload):
    candidate = kernel(task.name)
    reason = candidate.guard(*task.make_inputs(workload, "cpu", 0))
    if workload.layout in REFUSED:
        assert REFUSED[workload.layout] in reason
        return
    assert reason is None
    check(task, candidate.fn, workload)


@pytest.mark.parametrize("task_name", [*KERNELS, "grouped_gemm"])
def test_canaries_are_caught(check, task_name):
    task, canary = registry.task(task_name), registry.kernel(task_name, "canary")
    assert canary.wrong_on_purpose
    workload = next(w for w in task.edge_workloads if w.name == "edge-odd-size")
    with pytest.raises(AssertionError, match=r"off by|bits differ"):
        check(task, canary.fn, workload)


@pytest.mark.parametrize(("rounding", "layout"), [("once", "contiguous"), ("weight", "rounding_once")])
def test_another_rounding_order_is_caught(kernel, results, rounding, layout):
    """Within any usual tolerance of the right answer, and wrong in a quarter of all elements."""
    task = registry.task("rms_norm")
    workload = replace(
        task.edge_workloads[2], layout=layout, dtype="bfloat16", name="x", axes={"tokens": 64, "hidden": 576}
    )
    args = task.make_inputs(workload, "cpu", 0)
    (expected,) = results(task, task.reference, args)
    (right,) = results(task, kernel("rms_norm").fn, args)
    (wrong,) = results(task, kernel("rms_norm").fn, (*args[:4], rounding))
    assert (right != expected).float().mean() < 0.01
    assert (wrong != expected).float().mean() > 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("special", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("task_name", ["rms_norm", "fused_add_rms_norm", "softmax"])
def test_nan_and_infinity_fall_in_the_same_places(kernel, results, task_name, special, dtype):
    task, width = registry.task(task_name), 9000  # more than one chunk of softmax
    x = torch.randn((4, width), generator=torch.Generator().manual_seed(0)).to(dtype)
    x[1, 17] = x[2, width - 1] = special
    x[3] = special
    rest = {"rms_norm": (torch.ones(width, dtype=dtype), 1e-5), "softmax": ()}
    rest["fused_add_rms_norm"] = (torch.ones_like(x), *rest["rms_norm"])

    def run(fn):
        return results(task, fn, tuple(a.clone() if torch.is_tensor(a) else a for a in (x, *rest[task_name])))

    for ours, theirs in zip(run(kernel(task_name).fn), run(task.reference), strict=True):
        for place in (torch.isnan, torch.isposinf, torch.isneginf):
            assert torch.equal(place(ours), place(theirs))
        assert not torch.isnan(ours[0]).any()


@pytest.mark.parametrize("task_name", ["rms_norm", "fused_add_rms_norm", "softmax"])
def test_rows_alone_equal_rows_in_a_batch(kernel, results, task_name):
    task = registry.task(task_name)
    args = task.make_inputs(task.workloads[3], "cpu", 0)
    rows = task.tokens(*args)
    picked = [results(task, kernel(task_name).fn, _cut(args, rows, i, i + 1)) for i in (0, 1, rows // 2, rows - 1)]
    whole = results(task, kernel(task_name).fn, _cut(args, rows, 0, rows))
    for row, alone in zip((0, 1, rows // 2, rows - 1), picked, strict=True):
        for one, many in zip(alone, whole, strict=True):
            assert torch.equal(one[0], many[row])


def _cut(args, rows, start, stop):
    return tuple(a[start:stop].clone() if torch.is_tensor(a) and a.shape[0] == rows else a for a in args)


@pytest.mark.parametrize("task_name", ["rms_norm", "softmax"])
def test_out_is_filled_and_nothing_beside_it(kernel, task_name):
    task = registry.task(task_name)
    args = task.make_inputs(next(w for w in task.edge_workloads if w.name == "edge-odd-size"), "cpu", 0)
    expected = kernel(task_name).fn(*args)
    count = expected.numel()
    fenced = torch.full((count + 128,), 7.0, dtype=expected.dtype)
    out = fenced[64 : 64 + count].view(expected.shape)
    assert kernel(task_name).fn(*args, out=out) is out
    assert torch.equal(out, expected)
    assert (fenced[:64] == 7).all()
    assert (fenced[-64:] == 7).all()
    strided = torch.full((expected.shape[0], 2 * expected.shape[1]), 7.0, dtype=expected.dtype)
    kernel(task_name).fn(*args, out=strided[:, ::2])
    assert torch.equal(strided[:, ::2], expected)
    assert (strided[:, 1::2] == 7).all()


@pytest.mark.parametrize("name", ["sliced", "aliased-residual"])
def test_in_place_norm_leaves_the_rest_of_a_shared_buffer_alone(kernel, name):
    task = registry.task("fused_add_rms_norm")
    workload = next(w for w in task.edge_workloads if w.name == f"edge-{name}")
    x, residual, *rest = task.make_inputs(workload, "cpu", 0)
    expected = task.overloads[1].reference(x, residual, *rest)
    storages = {t.untyped_storage().data_ptr(): t for t in (x, residual)}
    touched = {p: torch.zeros(t.untyped_storage().nbytes() // 2, dtype=torch.bool) for p, t in storages.items()}
    before = {p: t.as_strided((len(touched[p]),), (1,), 0).clone() for p, t in storages.items()}
    for t in (x, residual):
        touched[t.untyped_storage().data_ptr()].as_strided(t.shape, t.stride(), t.storage_offset()).fill_(True)
    kernel("fused_add_rms_norm").fn(x, residual, *rest)
    assert (x != expected[0]).float().mean() < 0.01
    assert torch.equal(residual, expected[1])
    for p, t in storages.items():
        after = t.as_strided((len(touched[p]),), (1,), 0)
        assert torch.equal(after[~touched[p]], before[p][~touched[p]])


@pytest.mark.parametrize("name", ["padded", "all-padded", "head-major-cache", "key-longer-than-slots"])
def test_cache_write_stays_inside_its_slots(kernel, name):
    task = registry.task("store_kv_cache")
    workload = next(w for w in task.edge_workloads if w.name == f"edge-{name}")
    key, value, *caches, slots = task.make_inputs(workload, "cpu", 0)
    fenced = [torch.full((3, *c.shape), 5.0, dtype=c.dtype) for c in caches]
    kernel("store_kv_cache").fn(key, value, fenced[0][1], fenced[1][1], slots)
    live = sorted(s for s in slots.tolist() if s >= 0)
    for buffer in fenced:
        assert (buffer[0] == 5).all()
        assert (buffer[2] == 5).all()
        changed = (buffer[1] != 5).flatten(-2).any(dim=-1).flatten().nonzero().flatten().tolist()
        assert changed == live


def test_cache_write_past_the_end_writes_nowhere(kernel):
    task = registry.task("store_kv_cache")
    key, value, *caches, slots = task.make_inputs(task.edge_workloads[1], "cpu", 0)
    fenced = [torch.full((3, *c.shape), 5.0, dtype=c.dtype) for c in caches]
    slots = slots + caches[0].shape[0] * caches[0].shape[1]
    kernel("store_kv_cache").fn(key, value, fenced[0][1], fenced[1][1], slots)
    assert all((buffer == 5).all() for buffer in fenced)


@pytest.mark.parametrize(
    ("task_name", "change", "reason"),
    [
        ("rms_norm", lambda a: (a[0], a[1].double(), *a[2:]), "weight dtype float64"),
        ("rms_norm", lambda a: (*a[:4], "other"), "rounding other"),
        ("rms_norm", lambda a: (a[0], a[1].float(), *a[2:4], "input"), "weight wider than x"),
        ("rms_norm", lambda a: (a[0].expand(2, 2, *a[0].shape), *a[1:]), "more than three axes"),
        ("fused_add_rms_norm", lambda a: (a[0], a[1].float(), *a[2:]), "residual unlike x"),
        ("fused_add_rms_norm", lambda a: (a[0], a[1].t().contiguous().t(), *a[2:]), "last axis of residual"),
        ("softmax", lambda a: (a[0], torch.float64), "result float64"),
        ("store_kv_cache", lambda a: (*a[:2], a[2].float(), *a[3:]), "key_cache of another dtype"),
        ("store_kv_cache", lambda a: (*a[:2], a[2][..., :2], *a[3:]), "key_cache of another head shape"),
        ("store_kv_cache", lambda a: (*a[:4], a[4].short()), "slot_mapping int16"),
    ],
)
def test_guards_give_the_reason(kernel, task_name, change, reason):
    task = registry.task(task_name)
    args = task.make_inputs(next(w for w in task.edge_workloads if w.name == "edge-odd-size"), "cpu", 0)
    assert kernel(task_name).guard(*args) is None
    assert reason in kernel(task_name).guard(*change(args))
