"""The operator between its neighbours, compiled as one region (mode compile)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fk_plugin.bench import baselines
from fk_plugin.task import Task, Workload

_EXTRA_SEED = 20  # weights of the neighbours; the same in every process
_LIBRARIES: list[torch.library.Library] = []


def around(task: Task, op: Callable[..., Any], workload: Workload, device: str) -> Callable[..., Any]:
    """The region with `op` inside, not compiled: takes the operator's arguments."""
    region = task.region
    assert region is not None  # the session checked it
    extra = region.extra(workload, device, _EXTRA_SEED)
    return lambda *args: region.run(op, args, extra)


def oracle(task: Task, workload: Workload, device: str) -> Callable[..., Any]:
    """The region in float64 around the task's oracle."""
    region = task.region
    assert region is not None
    from fk_plugin.bench.tensors import upcast

    extra = upcast(region.extra(workload, device, _EXTRA_SEED))
    return lambda *args: region.run(task.oracle or task.reference, args, extra)


def compiled(
    task: Task, op: Callable[..., Any], workload: Workload, device: str, *, opaque: bool
) -> Callable[..., Any]:
    """The region compiled with the operator opaque (as ours is in an engine), or with `op` inlined and fused."""
    return baselines.compiled(around(task, opaque_op(task, op) if opaque else op, workload, device))


def opaque_op(task: Task, fn: Callable[..., Any]) -> Callable[..., Any]:
    """A torch operator of the task's schema around `fn`, in a namespace of its own."""
    namespace = f"fk_bench_{len(_LIBRARIES)}"
    library = torch.library.Library(namespace, "DEF")
    _LIBRARIES.append(library)  # a library that is collected takes its operators with it
    overload = task.overloads[0]
    library.define(overload.schema)
    for key in ("CPU", "CUDA"):
        library.impl(task.name, fn, key)
    torch.library.register_fake(f"{namespace}::{task.name}", overload.fake, lib=library)
    operator: Callable[..., Any] = getattr(getattr(torch.ops, namespace), task.name)
    return operator
