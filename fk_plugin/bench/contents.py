"""Which values a call sees. Both processes build them from the same recipe, so no expected value ever travels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch

from fk_plugin.bench.tensors import copy_storages, map_tensors, tensors_in
from fk_plugin.task import Task, Workload

# A recipe is JSON: {"seed": 3}; {"seed": 3, "twin": 4}: values of 3 with a block in the middle from 4;
# {"seed": 3, "rows": [2, 5]}: those rows alone; {"seed": 3, "draw": 7}: the 7th randomness.
Recipe = Mapping[str, Any]


def build(task: Task, workload: Workload, device: str, recipe: Recipe) -> tuple[Any, ...]:
    """The arguments that a recipe describes."""
    args = task.make_inputs(workload, device, int(recipe["seed"]))
    if "twin" in recipe:
        other = task.make_inputs(workload, device, int(recipe["twin"]))
        args = copy_storages(args)
        for mine, theirs in zip(tensors_in(args), tensors_in(other), strict=True):
            _mix(mine, theirs)
    if "draw" in recipe:
        assert task.redraw is not None  # Task checked it
        args = task.redraw(args, int(recipe["draw"]))
    if "rows" in recipe:
        start, stop = recipe["rows"]
        args = take_rows(task, args, int(start), int(stop))
    return args


def _mix(mine: torch.Tensor, theirs: torch.Tensor) -> None:
    """Take the second quarter from `theirs`: neither the ends, nor every element a sparse checksum would read."""
    if mine.is_floating_point() and mine.dim() and mine.shape[0] and mine.numel() >= 8:
        axis = max(range(mine.dim()), key=lambda d: mine.shape[d])
        start, length = mine.shape[axis] // 4, max(1, mine.shape[axis] // 4)
        mine.narrow(axis, start, length).copy_(theirs.narrow(axis, start, length))


def take_rows(task: Task, args: tuple[Any, ...], start: int, stop: int) -> tuple[Any, ...]:
    """The arguments for rows start..stop alone, by the task's rule or by the default one."""
    if task.take_rows is not None:
        return task.take_rows(args, start, stop)
    rows = task.tokens(*args)
    cut: tuple[Any, ...] = map_tensors(args, lambda t: t[start:stop] if t.dim() and t.shape[0] == rows else t)
    return cut


def follows_rows(tensor: torch.Tensor, rows: int) -> bool:
    """Whether a result's first axis is the rows."""
    return bool(tensor.dim()) and tensor.shape[0] == rows


def pack(workload: Workload) -> dict[str, Any]:
    """The workload as JSON."""
    return {**asdict(workload), "axes": dict(workload.axes)}


def unpack(data: Mapping[str, Any]) -> Workload:
    """The workload of `pack`."""
    return Workload(**data)
