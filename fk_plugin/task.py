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
class Baseline:
    """What production runs for the task today; the fastest that loads is the denominator of every speedup.

    `load(device)` imports what it needs and returns a callable with the arguments and results of the task's first
    overload. Where it cannot run it raises ImportError, AttributeError, RuntimeError or NotImplementedError; the
    message is shown beside the baseline's name. `devices` are those it is tried on. A mutating baseline of a
    functional task must copy inside, because production would have to as well.
    """

    name: str
    engine: str
    load: Callable[[str], Callable[..., Any]]
    devices: tuple[str, ...] = ("cpu", "cuda")


@dataclass(frozen=True, kw_only=True)
class Region:
    """The operator with the neighbours it has in an engine, for `fk bench --mode compile`.

    `run(op, args, extra)` calls `op(*args)` (or op on what it computed from them) between its neighbours, in plain
    torch that compiles without a graph break, and returns tensors. `extra(workload, device, seed)` makes what the
    neighbours need besides, weights for example. `source` says which engine code it was taken from. `native` is the
    form of the operator that production's own code has there, where that is not the task's first: it takes the same
    arguments and may return what the first form writes. The compiler inlines it into the baseline.
    """

    run: Callable[[Callable[..., Any], tuple[Any, ...], tuple[Any, ...]], Any]
    source: str
    extra: Callable[[Workload, str, int], tuple[Any, ...]] = lambda workload, device, seed: ()
    native: Callable[..., Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Task:
    """An operator's contract.

    Attributes:
        name: the operator's name in torch.ops.fk.
        summary: one line for `fk list tasks`.
        overloads: the form that kernels implement first (functional where there is one; it may mutate, then its
            schema says which arguments), then other forms. A result is a tensor, a tuple of tensors or None.
        workloads: where it is measured.
        make_inputs: (workload, device, seed) -> the arguments of the first overload. Called with many seeds; the
            values must be realistic and must leave no argument trivial (no all-ones weight, no all-valid mask).
            Tensors may be views of one storage ("sliced", "aliased" layouts): the sandbox copies whole storages, so
            what the views share stays shared, and bytes outside the declared mutated views must not change.
        cost: (workload) -> Cost.
        tokens: (arguments of any overload) -> number of rows, the axis that engines vary from step to step.
        mirrors: the engine callables it stands for.
        edge_workloads: shapes that only correctness is judged on (phase "edge"): 0 rows, 1 row, odd sizes, strided
            and sliced inputs, padded slots, aliased residuals.
        oracle: the first overload in float64: it receives the arguments with floating tensors as float64 (integers
            untouched, what shared storage still shares it) and returns or mutates float64. None: the reference
            itself is called that way. For compare="distribution" it returns the probabilities [rows, outcomes].
        baselines: what production runs.
        compare: "numeric": floating outputs within a tolerance derived from what the reference (and the baselines)
            lose against the oracle, integer outputs equal. "exact": every output bit equals the reference's.
            "distribution": outcomes [rows] are drawn many times and judged against the oracle's probabilities.
        redraw: (arguments, k) -> the same arguments with the k-th randomness; needed for "distribution".
        take_rows: (arguments, start, stop) -> the arguments for those rows alone; None: every tensor whose first
            axis is as long as the rows is cut there. Results and mutated arguments that follow rows are compared.
        row_variance: why a row's result may depend on the rows beside it; empty: it must not, bit for bit.
        rounding_freedom: why a 16-bit result may be rounded in another order than the reference's (the intermediate
            roundings an engine does are part of what a model was trained or evaluated with); empty: it may not.
        bitwise_results: positions, in what the mirrored callable returns, of results that every right implementation
            gives bit for bit (a residual sum, rounded once), so that no difference is excused there.
        insensitive: arguments the result does not depend on, each with the reason; the linter wants every other
            tensor argument to matter.
        world_size: fewest ranks it is meaningful on. Above 1, make_inputs, kernels, reference and oracle run in every
            rank with torch.distributed's default group up; make_inputs gets the same seed everywhere and asks
            torch.distributed.get_rank() for its share.
        region: the operator with its neighbours, for mode compile.
    """

    name: str
    summary: str
    overloads: tuple[Overload, ...]
    workloads: tuple[Workload, ...]
    make_inputs: Callable[[Workload, str, int], tuple[Any, ...]]
    cost: Callable[[Workload], Cost]
    tokens: Callable[..., int]
    mirrors: tuple[Mirror, ...] = ()
    edge_workloads: tuple[Workload, ...] = ()
    oracle: Callable[..., Any] | None = None
    baselines: tuple[Baseline, ...] = ()
    compare: str = "numeric"
    redraw: Callable[[tuple[Any, ...], int], tuple[Any, ...]] | None = None
    take_rows: Callable[[tuple[Any, ...], int, int], tuple[Any, ...]] | None = None
    row_variance: str = ""
    rounding_freedom: str = ""
    bitwise_results: tuple[int, ...] = ()
    insensitive: Mapping[str, str] = field(default_factory=dict)
    world_size: int = 1
    region: Region | None = None

    def __post_init__(self) -> None:
        self._check_overloads()
        self._check_workloads()
        if self.compare not in ("numeric", "exact", "distribution"):
            raise ValueError(f"task {self.name}: compare is numeric, exact or distribution, got {self.compare!r}")
        if self.compare == "distribution" and (self.oracle is None or self.redraw is None):
            raise ValueError(f"task {self.name}: compare='distribution' needs oracle (probabilities) and redraw")
        if self.world_size < 1:
            raise ValueError(f"task {self.name}: world_size must be at least 1, got {self.world_size}")
        names = [b.name for b in self.baselines]
        if len(set(names)) != len(names):
            raise ValueError(f"task {self.name}: baseline names must be unique, got {names}")

    def _check_overloads(self) -> None:
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

    def _check_workloads(self) -> None:
        names = [w.name for w in (*self.workloads, *self.edge_workloads)]
        if len(set(names)) != len(names):
            raise ValueError(f"task {self.name}: workload names must be unique, got {names}")
        for workload in self.edge_workloads:
            if workload.phase != "edge":
                raise ValueError(f"task {self.name}: edge workload {workload.name} has phase {workload.phase!r}")

    @property
    def reference(self) -> Callable[..., Any]:
        """The functional form's reference."""
        return self.overloads[0].reference
