"""Case 65: a kernel broke the graph under Dynamo, or failed only there (flashinfer#978, kernels-community#312).

Every form of every task's operator, with every kernel that can be in force here, compiles with `fullgraph=True` and
gives the bits of the eager call.
"""

import inspect

import pytest
import torch
import torch.distributed as dist

from fk_plugin import dispatch, registry
from fk_plugin.kernel import Kernel

# A size without special properties; sampling and collectives have edges of other names.
EDGES = ("edge-odd-size", "edge-one-row")


@pytest.fixture(scope="module", autouse=True)
def one_rank():
    """A group of this process alone, for the operators that sum over ranks."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def _cases():
    for task in registry.tasks().values():
        usable = [k for k in registry.kernels(task.name)[0].values() if dispatch.unavailable(k) is None]
        for kernel in (None, *usable):
            for overload in task.overloads:
                yield pytest.param(task, kernel, overload, id=f"{task.name}-{_name(kernel)}-{overload.name}")


def _name(kernel: Kernel | None) -> str:
    return kernel.name if kernel else "reference"


def _arguments(task, overload):
    workload = next(w for name in EDGES for w in task.edge_workloads if w.name == name)
    args = task.make_inputs(workload, "cpu", 3)
    kwargs = {}
    if "out" in inspect.signature(overload.fake).parameters:
        kwargs["out"] = torch.full_like(task.overloads[0].fake(*args), torch.nan)
    return list(args), kwargs


def _everything(fn, task, overload):
    """What the call returns and every argument afterwards, written ones among them."""
    args, kwargs = _arguments(task, overload)
    returned = fn(*args, **kwargs)
    values = [*(returned if isinstance(returned, tuple) else (returned,)), *args, *kwargs.values()]
    return [v for v in values if isinstance(v, torch.Tensor)]


@pytest.mark.parametrize(("task", "kernel", "overload"), list(_cases()))
def test_case_65_compiles_without_a_graph_break_to_the_same_bits(task, kernel, overload):
    operator = dispatch.operator(task)
    op = getattr(getattr(torch.ops.fk, task.name), overload.name)
    torch._dynamo.reset()
    operator.use(kernel)
    try:
        eager = _everything(op, task, overload)
        compiled = torch.compile(lambda *a, **k: op(*a, **k), fullgraph=True, backend="aot_eager")
        got = _everything(compiled, task, overload)
    finally:
        operator.use(None)
    assert len(got) == len(eager)
    for a, b in zip(got, eager, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        assert torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))
