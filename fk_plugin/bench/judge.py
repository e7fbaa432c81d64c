"""A candidate's raw results -> a verdict. Runs where the candidate never was, after it ran, from the same recipe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fk_plugin.bench import compare, region, schema
from fk_plugin.bench.checks import Checks
from fk_plugin.bench.compare import Errors
from fk_plugin.bench.contents import Recipe, build
from fk_plugin.bench.status import Rejected, Status
from fk_plugin.bench.tensors import copy_storages, read, tensors_in, upcast
from fk_plugin.bench.watch import Watch
from fk_plugin.task import Task, Workload

_HISTORY = 8


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What a call must produce: `reference` in the task's dtypes, `oracle` in float64 where floating.

    Both hold returned tensors (`returned` of them), then written arguments. `form` is tensor, tuple or none.
    `computed` are the operators that the reference ran.
    """

    reference: list[torch.Tensor]
    oracle: list[torch.Tensor]
    returned: int
    form: str
    computed: frozenset[str] = frozenset()


def expect(task: Task, workload: Workload, device: str, recipe: Recipe, *, compiled: bool = False) -> Expected:
    """Run the reference and the oracle. `compiled`: of the region around the operator (mode compile)."""
    args = build(task, workload, device, recipe)
    reference: Callable[..., Any] = task.reference
    oracle: Callable[..., Any] = task.oracle or task.reference
    if compiled:
        reference = region.around(task, task.reference, workload, device)
        oracle = region.oracle(task, workload, device)
    native, high = copy_storages(args), upcast(args)
    watch = Watch(poison=False, fill=False)
    with watch, torch.no_grad():
        result = reference(*native)
    with torch.no_grad():
        truth = oracle(*high)
    written = (lambda values: []) if compiled else schema.main(task).written_tensors
    return Expected(
        reference=[*tensors_in(result), *written(native)],
        oracle=[*tensors_in(truth), *written(high)],
        returned=len(tensors_in(result)),
        form=form_of(result),
        computed=frozenset(watch.computed),
    )


def form_of(result: Any) -> str:
    """tensor, tuple (a list counts as one), none, or the name of another type."""
    if result is None:
        return "none"
    if isinstance(result, torch.Tensor):
        return "tensor"
    return "tuple" if isinstance(result, (tuple, list)) else type(result).__name__


class Judge:
    """Judges the calls of one candidate on one workload after another."""

    def __init__(self, task: Task, device: str, checks: Checks) -> None:
        self.task, self.device, self.checks = task, device, checks
        self.errors = Errors()  # the worst seen on the current workload
        self._yardsticks: list[Errors] = []
        self._history: list[tuple[str, list[torch.Tensor]]] = []

    def begin(self, yardsticks: list[Errors]) -> None:
        """Start on another workload, with what the engines' baselines lose there."""
        self.errors, self._yardsticks, self._history = Errors(), yardsticks, []

    def outputs(self, entries: list[dict[str, Any]], folder: Path) -> list[torch.Tensor]:
        """The result tensors of a reply.

        Raises:
            Rejected: CHEAT_CHANNEL, the files are not what the reply says.
        """
        try:
            return [read(folder, entry) for entry in entries]
        except (KeyError, TypeError, ValueError) as error:
            raise Rejected(Status.CHEAT_CHANNEL, f"its results do not match their description: {error}") from error

    def structure(self, reply: dict[str, Any], expected: Expected, *, form: str = "main") -> None:
        """Number, type, shape, dtype, strides, device and memory of results; what else was written."""
        if self.checks.on("guard_zones") and reply["guard_bytes"]:
            raise Rejected(Status.OUT_OF_BOUNDS, f"{reply['guard_bytes']} bytes beside its arguments were overwritten")
        if self.checks.on("mutation") and reply["mutated"]:
            raise Rejected(Status.MUTATED_INPUT, f"it wrote to {', '.join(reply['mutated'])}, which it may only read")
        if self.checks.on("threads") and reply["left"]:
            raise Rejected(Status.CHEAT_ASYNC, f"the call left {', '.join(reply['left'])} behind")
        if not self.checks.on("structure"):
            return
        entries = reply["outputs"]
        seen = "tuple" if reply["form"] == "list" else reply["form"]
        if form == "main" and seen != expected.form:
            raise Rejected(Status.BAD_OUTPUT, f"it returned {_article(seen)}, expected {_article(expected.form)}")
        if len(entries) != len(expected.reference):
            raise Rejected(Status.BAD_OUTPUT, f"it gave {len(entries)} tensors, expected {len(expected.reference)}")
        for number, (entry, want) in enumerate(zip(entries, expected.reference, strict=True)):
            self._one(number, entry, want)
        for number, kind in enumerate(reply["types"]):
            if kind:
                raise Rejected(Status.BAD_OUTPUT, f"result {number} is a {kind}, expected a plain torch.Tensor")
        for number, name in enumerate(reply["aliases"]):
            if name:
                raise Rejected(Status.BAD_OUTPUT, f"result {number} shares memory with argument {name}")

    def _one(self, number: int, entry: dict[str, Any], want: torch.Tensor) -> None:
        dtype = str(want.dtype).removeprefix("torch.")
        strides = [(a, b) for a, b, n in zip(entry["stride"], want.stride(), want.shape, strict=False) if n > 1]
        for name, got, expected in (
            ("shape", entry["shape"], list(want.shape)),
            ("dtype", entry["dtype"], dtype),
            ("device", entry["device"], torch.device(self.device).type),
        ):
            if got != expected:
                raise Rejected(Status.BAD_OUTPUT, f"result {number} has {name} {got}, expected {expected}")
        if want.numel() and any(a != b for a, b in strides):
            got, wanted = entry["stride"], list(want.stride())
            raise Rejected(Status.BAD_OUTPUT, f"result {number} has strides {got}, expected {wanted}")

    def values(self, label: str, got: list[torch.Tensor], expected: Expected, *, same_rounding: bool = True) -> None:
        """Every result within what the yardsticks lose; a result that belongs to an earlier call is STALE_OUTPUT.

        Raises:
            Rejected: WRONG or STALE_OUTPUT, with the element and the allowance.
        """
        try:
            if len(got) != len(expected.reference):
                raise Rejected(Status.BAD_OUTPUT, f"{label}: {len(got)} results, expected {len(expected.reference)}")
            for number, output in enumerate(got):
                want = expected.reference[number]
                if output.shape != want.shape or (output.dtype != want.dtype and self.checks.on("structure")):
                    what = f"{output.dtype} {list(output.shape)}, expected {want.dtype} {list(want.shape)}"
                    raise Rejected(Status.BAD_OUTPUT, f"{label}: result {number} is {what}")
                self._value(label, number, output, expected, same_rounding)
        except Rejected as rejected:
            if rejected.verdict.status is Status.WRONG:
                self._stale(label, got)
            raise
        self._history = [*self._history[1 - _HISTORY :], (label, got)]

    def _value(self, label: str, number: int, got: torch.Tensor, expected: Expected, same_rounding: bool) -> None:
        want, truth = expected.reference[number], expected.oracle[number]
        where = f"{label}: " if label else ""
        if self.task.compare == "distribution" and number < expected.returned:
            complaint = compare.improbable(got.reshape(1, -1).cpu(), truth.double().cpu())
            if complaint:
                raise Rejected(Status.WRONG, f"{where}{complaint}")
            return
        got = got.to(want.device)
        if self.task.compare == "exact" or not want.is_floating_point():
            if self.checks.on("numeric") and not compare.equal_bits(got, want):
                count = int((got != want).sum())
                raise Rejected(Status.WRONG, f"{where}{count} of {want.numel()} elements differ; they must be equal")
            return
        complaint = compare.same_places(got, want) if self.checks.on("nan_placement") else None
        if complaint is None and self.checks.on("numeric"):
            complaint = self._within(got, truth, want, same_rounding)
        if complaint:
            raise Rejected(Status.WRONG, f"{where}{complaint}")

    def _within(self, got: torch.Tensor, truth: torch.Tensor, want: torch.Tensor, same_rounding: bool) -> str | None:
        yardstick = compare.worst((compare.measure(want, truth, want), *self._yardsticks))
        same_rounding = same_rounding and not self.task.rounding_freedom and self.checks.on("rounding")
        width = want.shape[-1] if want.dim() else 1
        allowed = compare.tolerance(yardstick, want.dtype, same_rounding=same_rounding, width=width)
        errors = compare.measure(got, truth, want)
        self.errors = compare.worst((self.errors, errors))
        return compare.excess(errors, allowed, width) or compare.rounding_excess(errors, allowed, want.numel())

    def _stale(self, label: str, got: list[torch.Tensor]) -> None:
        for other, earlier in self._history:
            pairs = list(zip(got, earlier, strict=False))
            if other != label and pairs and all(a.numel() and compare.equal_bits(a, b) for a, b in pairs):
                raise Rejected(Status.STALE_OUTPUT, f"{label}: the result is that of {other}, bit for bit")


def _article(form: str) -> str:
    return {"none": "nothing", "tensor": "a tensor", "tuple": "a tuple of tensors"}.get(form, f"a {form}")
