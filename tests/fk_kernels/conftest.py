"""How kernels are judged here: against the task's float64 oracle, by what the reference itself loses.

The sandbox has its own, stricter judge; these tests must not depend on it.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fk_plugin.dispatch import _written
from fk_plugin.task import Task, Workload


def _results(task: Task, fn: Callable[..., Any], args: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
    """What `fn` returns, or the arguments it wrote."""
    returned = fn(*args)
    if returned is None:
        return tuple(args[i] for i in _written(task.overloads[0]))
    return returned if isinstance(returned, tuple) else (returned,)


def _wide(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args)


def _row_errors(result: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Relative L2 of every row; where the exact row is zero, its absolute L2."""
    if exact.numel() == 0:
        return torch.zeros(1, dtype=torch.float64)
    result, exact = (t.reshape(-1, t.shape[-1]).double() for t in (result, exact))
    size = exact.norm(dim=-1)
    return (result - exact).norm(dim=-1) / torch.where(size > 0, size, 1.0)


def _check(task: Task, fn: Callable[..., Any], workload: Workload, seed: int = 0) -> None:
    """Raise AssertionError unless `fn` is as near to the oracle as the reference is.

    The limit for every row is the worst row of the reference times 1.25 (rounding is random; both round as often), plus
    8 units of float32 for a different order of summation.
    """
    made = [task.make_inputs(workload, "cpu", seed) for _ in range(3)]
    got, reference = _results(task, fn, made[0]), _results(task, task.reference, made[1])
    if task.oracle is None and task.compare == "exact":
        exact = reference
    else:
        exact = _results(task, task.oracle or task.reference, _wide(made[2]))
    for result, ours, truth in zip(got, reference, exact, strict=True):
        assert (result.shape, result.dtype, result.stride()) == (ours.shape, ours.dtype, ours.stride())
        if task.compare == "exact":
            assert torch.equal(result, ours), f"{workload.name}: bits differ"
            continue
        limit = 1.25 * float(_row_errors(ours, truth).max()) + 8 * torch.finfo(torch.float32).eps
        worst = float(_row_errors(result, truth).max())
        assert worst <= limit, f"{workload.name}: worst row is off by {worst:.3g}, the limit is {limit:.3g}"


@pytest.fixture
def check():
    """(task, fn, workload) -> None, or AssertionError."""
    return _check


@pytest.fixture
def results():
    """(task, fn, args) -> the tensors that fn returned or wrote."""
    return _results
