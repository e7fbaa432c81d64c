"""What every task promises: schema, fake, workloads, cost, mirrors."""

import importlib.util
import inspect
import pkgutil

import pytest
import torch

from fk_plugin import registry
from fk_plugin.dispatch import operator

TASKS = [t for t in registry.tasks().values() if t.edge_workloads]
OVERLOADS = [(t, o) for t in TASKS for o in t.overloads]
MIRRORS = [(t, m) for t in TASKS for m in t.mirrors]
PACKAGES = {"vllm": "vllm", "sglang": "sglang", "torch": "torch"}


def _op(task, overload):
    operator(task)
    return getattr(getattr(torch.ops.fk, task.name), overload.name)


def _arguments(task, overload, workload):
    """Arguments of any overload: the first form's, and an `out` where the schema asks for one."""
    args, kwargs = task.make_inputs(workload, "cpu", 0), {}
    if "out" in inspect.signature(overload.fake).parameters:
        made = task.overloads[0].fake(*args)
        kwargs["out"] = torch.empty_like(made)
    return args, kwargs


def _picked(task):
    """Two edge workloads: the one with odd sizes and the one with no rows."""
    return [w for w in task.edge_workloads if w.name in ("edge-odd-size", "edge-no-rows")]


@pytest.mark.parametrize(("task", "overload"), OVERLOADS, ids=lambda v: v.name)
def test_opcheck(task, overload, one_rank):
    for workload in _picked(task):
        args, kwargs = _arguments(task, overload, workload)
        torch.library.opcheck(_op(task, overload), args, kwargs)


@pytest.mark.parametrize(("task", "overload"), OVERLOADS, ids=lambda v: v.name)
def test_fake_is_exact_on_every_edge_workload(task, overload, one_rank):
    for workload in task.edge_workloads:
        args, kwargs = _arguments(task, overload, workload)
        made = overload.fake(*args, **kwargs)
        real = overload.reference(*args, **kwargs)
        assert (made is None) == (real is None)
        pairs = (
            zip(*((v if isinstance(v, tuple) else (v,)) for v in (made, real)), strict=True) if real is not None else ()
        )
        for fake, result in pairs:
            assert (fake.shape, fake.dtype, fake.stride()) == (result.shape, result.dtype, result.stride()), (
                workload.name
            )


@pytest.mark.parametrize("task", TASKS, ids=lambda t: t.name)
def test_inputs_repeat_with_the_seed_and_change_with_it(task, one_rank):
    workload = next(w for w in task.edge_workloads if w.name == "edge-odd-size")
    first, again, other = (task.make_inputs(workload, "cpu", seed) for seed in (1, 1, 2))
    tensors = [i for i, a in enumerate(first) if isinstance(a, torch.Tensor)]
    assert all(torch.equal(first[i], again[i]) for i in tensors)
    assert not all(torch.equal(first[i], other[i]) for i in tensors)


@pytest.mark.parametrize("task", TASKS, ids=lambda t: t.name)
def test_cost_and_tokens(task, one_rank):
    for workload in task.workloads:
        cost = task.cost(workload)
        assert cost.bytes > 0
        assert cost.flops >= 0
        assert workload.source
    for workload in task.edge_workloads:
        args = task.make_inputs(workload, "cpu", 0)
        expected = workload.axes.get("rows", workload.axes.get("tokens")) * workload.axes.get("heads", 1)
        assert task.tokens(*args) == (workload.axes["tokens"] if task.name == "store_kv_cache" else expected)


@pytest.mark.parametrize(("task", "mirror"), MIRRORS, ids=lambda v: getattr(v, "name", getattr(v, "target", "")))
def test_mirror_signature(task, mirror):
    if importlib.util.find_spec(PACKAGES[mirror.engine]) is None:
        pytest.skip(f"{mirror.engine} is not installed")
    assert str(inspect.signature(pkgutil.resolve_name(mirror.target))) == mirror.signature
