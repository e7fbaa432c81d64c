"""What a task's schema says about its arguments: names, and which are written."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from fk_plugin.bench.tensors import tensors_in
from fk_plugin.task import Overload, Task


@dataclass(frozen=True, kw_only=True)
class Signature:
    """Argument names of one overload in order, and the written ones."""

    names: tuple[str, ...]
    written: frozenset[str]

    def tensor_names(self, args: tuple[Any, ...]) -> list[str]:
        """The argument name of each tensor in `args`, in the order of tensors_in."""
        return [name for name, value in zip(self.names, args, strict=False) for _ in tensors_in(value)]

    def written_tensors(self, args: tuple[Any, ...]) -> list[torch.Tensor]:
        """The tensors that a call may write."""
        pairs = zip(self.names, args, strict=False)
        return [t for name, value in pairs if name in self.written for t in tensors_in(value)]


@cache
def signature(schema: str) -> Signature:
    """Parse a torch operator schema."""
    parsed = torch._C.parse_schema(schema if "::" in schema else f"fk::{schema}")
    written = (a.name for a in parsed.arguments if a.alias_info is not None and a.alias_info.is_write)
    return Signature(names=tuple(a.name for a in parsed.arguments), written=frozenset(written))


def main(task: Task) -> Signature:
    """The first overload's signature."""
    return signature(task.overloads[0].schema)


def out_overload(task: Task) -> Overload | None:
    """The overload that writes into `out` instead of returning, if the task has one."""
    for overload in task.overloads[1:]:
        if signature(overload.schema).written == {"out"}:
            return overload
    return None


def outputs(task: Task, args: tuple[Any, ...], result: Any) -> list[torch.Tensor]:
    """What a call produced: returned tensors, then written arguments."""
    return [*tensors_in(result), *main(task).written_tensors(args)]
