"""Task, Workload, Cost, Mirror: what an operator must compute, on which shapes, and whose callables it stands for."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

# Tensors are typed Any here: this module is imported by `fk list` and by tests where torch is not installed.
Tensor = Any

_SCHEMA = re.compile(r"^(?P<name>[a-z][a-z0-9_]*)(?:\.(?P<overload>[a-z][a-z0-9_]*))?\(")


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The least work any implementation must do: `bytes` moved to and from memory, `flops` executed."""

    bytes: int
    flops: int


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One point a task is measured at.

    `axes` maps axis names to sizes (for example tokens=8, hidden=1536), `source` says where the sizes come from
    (model and module), `phase` is prefill or decode, or edge for a shape that only correctness is judged on.
    `layout` names how the inputs lie in memory; "contiguous" unless a task knows others ("strided", "sliced",
    "padded", "aliased", ...).
    """

    name: str
    axes: Mapping[str, int]
    dtype: str
    source: str
    phase: str
    layout: str = "contiguous"

    def __post_init__(self) -> None:
        if self.phase not in ("prefill", "decode", "edge"):
            raise ValueError(f"workload {self.name}: phase must be prefill, decode or edge, got {self.phase!r}")


@dataclass(frozen=True, kw_only=True)
class Mirror:
    """An engine's callable that computes this task: `target` is "module:qualified.name".

    `signature` is str(inspect.signature(callable)) where the engine is installed; `arguments` are the values of the
    task's semantic variants under which the two compute the same.
    """

    engine: str
    target: str
    signature: str
    arguments: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Overload:
    """One form of the operator: its torch schema, its reference and its fake (shape-only) implementation."""

    schema: str
    reference: Callable[..., Any]
    fake: Callable[..., Any]

    @property
    def name(self) -> str:
        """The overload's name, "default" for the plain form."""
        match = _SCHEMA.match(self.schema)
        assert match is not None  # Task checked it
        return match["overload"] or "default"

    @property
    def mutates(self) -> bool:
        """Whether the schema declares a written argument."""
        return "!" in self.schema


@dataclass(frozen=True, kw_only=True)
class Task:
    """An operator's contract.

    Attributes:
        name: the operator's name in torch.ops.fk.
        summary: one line for `fk list tasks`.
        overloads: the functional form first, then mutating forms.
        workloads: where it is measured.
        make_inputs: (workload, device, seed) -> the arguments of the first overload.
        cost: (workload) -> Cost.
        tokens: (arguments of any overload) -> number of rows, the axis that engines vary from step to step.
        mirrors: the engine callables it stands for.
    """

    name: str
    summary: str
    overloads: tuple[Overload, ...]
    workloads: tuple[Workload, ...]
    make_inputs: Callable[[Workload, str, int], tuple[Any, ...]]
    cost: Callable[[Workload], Cost]
    tokens: Callable[..., int]
    mirrors: tuple[Mirror, ...] = ()

    def __post_init__(self) -> None:
        if not self.overloads:
            raise ValueError(f"task {self.name}: at least one overload is needed")
        seen = set()
        for overload in self.overloads:
            match = _SCHEMA.match(overload.schema)
            if match is None or match["name"] != self.name:
                raise ValueError(f"task {self.name}: schema must start with the task's name, got {overload.schema!r}")
            if overload.name in seen:
                raise ValueError(f"task {self.name}: overload {overload.name} is declared twice")
            seen.add(overload.name)
        names = [w.name for w in self.workloads]
        if len(set(names)) != len(names):
            raise ValueError(f"task {self.name}: workload names must be unique, got {names}")

    @property
    def reference(self) -> Callable[..., Any]:
        """The functional form's reference."""
        return self.overloads[0].reference
