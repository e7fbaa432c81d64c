"""Whether a task can tell right from wrong: its outputs must depend on every input, and must not be constant."""

from __future__ import annotations

from typing import Any

import torch

from fk_plugin.bench import schema
from fk_plugin.bench.compare import equal_bits
from fk_plugin.bench.contents import build
from fk_plugin.bench.tensors import copy_storages, tensors_in
from fk_plugin.task import Task, Workload

_OTHER_SEEDS = range(2, 8)  # one token's slot or position may be the same for two seeds by chance


def lint(task: Task, workload: Workload, device: str) -> list[str]:
    """What is wrong with the task on one workload, as half sentences; empty if nothing."""
    first = build(task, workload, device, {"seed": 1})
    others = [build(task, workload, device, {"seed": seed}) for seed in _OTHER_SEEDS]
    base = _run(task, first)
    found = []
    for number, output in enumerate(base):
        if output.numel() > 1 and bool((output == output.reshape(-1)[0]).all()):
            found.append(f"output {number} is constant on {workload.name}")
    if _same(base, _run(task, others[0])):
        found.append(f"two seeds give equal outputs on {workload.name}")
    for number, (name, value) in enumerate(zip(schema.main(task).names, first, strict=False)):
        if name in task.insensitive or not tensors_in(value):
            continue
        second = next((o for o in others if not _same(tensors_in(value), tensors_in(o[number]))), None)
        if second is None:
            found.append(f"argument {name} is the same for every seed")
        elif not _matters(task, first, second, name, base):
            found.append(f"no output depends on argument {name}; if that is meant, say why in Task.insensitive")
    return found


def _matters(task: Task, first: tuple[Any, ...], second: tuple[Any, ...], name: str, base: list[torch.Tensor]) -> bool:
    """Whether the outputs change when one argument's values come from another seed."""
    args = copy_storages(first)
    names = schema.main(task).tensor_names(args)
    for which, mine, theirs in zip(names, tensors_in(args), tensors_in(second), strict=True):
        if which == name:
            mine.copy_(theirs)
    return not _same(base, _run(task, args, copied=True))


def _run(task: Task, args: tuple[Any, ...], *, copied: bool = False) -> list[torch.Tensor]:
    own = args if copied else copy_storages(args)
    return schema.outputs(task, own, task.reference(*own))


def _same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(equal_bits(x, y) for x, y in zip(a, b, strict=True))
