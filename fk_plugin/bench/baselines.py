"""What production runs for a task: the task's own baselines, the reference as it stands, and torch.compile of it."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from fk_plugin.task import Baseline, Task


def own_copy(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A copy of a plain function that keeps working when the original is trapped; other callables as they are."""
    if not isinstance(fn, types.FunctionType):
        return fn
    copy = types.FunctionType(fn.__code__, fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)
    copy.__kwdefaults__ = fn.__kwdefaults__
    return functools.wraps(fn)(copy)


def of(task: Task) -> tuple[Baseline, ...]:
    """Every baseline of a task, the engines' first."""
    return (
        *task.baselines,
        Baseline(name="torch.compile", engine="torch", load=lambda device: compiled(own_copy(task.reference))),
        Baseline(name="reference", engine="torch", load=lambda device: own_copy(task.reference)),
    )


def compiled(fn: Callable[..., Any]) -> Callable[..., Any]:
    """torch.compile with one graph for each shape, as an engine compiles for the shapes it captures."""
    import torch._dynamo.config as dynamo
    import torch._inductor.config as inductor

    inductor.compile_threads = 1  # a pool of compilers would be a pool of child processes
    dynamo.recompile_limit = dynamo.accumulated_recompile_limit = 4096  # one per shape, and shapes are many
    if "tqdm" in sys.modules:
        sys.modules["tqdm"].tqdm.monitor_interval = 0  # Inductor's progress bar would start a thread
    made: Callable[..., Any] = torch.compile(fn, dynamic=False, fullgraph=True)
    return made


def load(task: Task, name: str, device: str) -> Callable[..., Any]:
    """The baseline's callable.

    Raises:
        KeyError: the task has no such baseline. RuntimeError: it cannot run here, with the reason.
    """
    found = {b.name: b for b in of(task)}[name]
    if torch.device(device).type not in found.devices:
        raise RuntimeError(f"not for {torch.device(device).type}")
    try:
        return found.load(device)
    except Exception as error:  # boundary: engines fail in every way when a library is missing; the table says how
        lines = str(error).strip().splitlines() or [""]
        raise RuntimeError(f"{type(error).__name__}: {lines[0][:160]}") from error
