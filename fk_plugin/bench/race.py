"""Baselines in a process no candidate ever enters: which run here, how exact and how fast they are."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from fk_plugin.bench import baselines, compare
from fk_plugin.bench.ceilings import Ceilings, from_reply
from fk_plugin.bench.child import Nursery, NurseryLost
from fk_plugin.bench.contents import pack
from fk_plugin.bench.group import Group
from fk_plugin.bench.judge import Expected, Judge, expect
from fk_plugin.bench.measure import Clock, Plan, seed
from fk_plugin.bench.setting import Setting
from fk_plugin.bench.statistics import median
from fk_plugin.bench.status import Rejected, Status
from fk_plugin.errors import UsageError
from fk_plugin.registry import unknown
from fk_plugin.task import Workload

_ROUNDS = 6
REGION = "region compiled by Inductor"


@dataclass
class Denominator:
    """The fastest baseline of one workload, its seconds per call, and what the baselines lose against the oracle."""

    name: str
    seconds: float
    yardsticks: list[compare.Errors] = field(default_factory=list)
    wrong: dict[str, str] = field(default_factory=dict)


class Race:
    """The clean process and what it measured."""

    def __init__(self, nursery: Nursery, setting: Setting) -> None:
        self.setting = setting
        self.missing: dict[str, str] = {}
        self.results: dict[str, Denominator] = {}
        self.names = self._names()
        self.move(nursery)
        self.ceilings: Ceilings = from_reply(self.group.ask("ceilings", timeout=120)[0])

    def move(self, nursery: Nursery) -> None:
        """Start the clean process (again) as a child of `nursery`; what was measured stays."""
        setting = self.setting
        self.nursery = nursery
        for name in self.names if setting.device == "cpu" else ():
            try:
                reply = nursery.request({"op": "preload", "task": setting.spec, "names": [name], "device": "cpu"})
            except NurseryLost as lost:
                reason = f"baseline {name} ended its process while loading ({lost}); leave it out with --baselines."
                raise UsageError(reason) from lost
            self.missing |= {name: why for name, why in reply["reasons"].items() if why}
        self._load()

    def _names(self) -> list[str]:
        known = [b.name for b in baselines.of(self.setting.task)]
        if self.setting.mode == "compile":
            return ["reference"]
        for name in self.setting.baselines:
            if name not in known:
                raise UsageError(unknown(f"baseline of {self.setting.task.name}", name, known))
        return [n for n in known if n in self.setting.baselines] or known

    def _load(self) -> None:
        setting = self.setting
        self.group = Group(self.nursery, setting.limits, world=setting.world)
        self.group.load(timeout=setting.limits.load_s, task=setting.spec, device=setting.device, sides={}, disabled=[])
        timed = [found.name for found in self.results.values()]  # also one that failed since, on another workload
        for name in dict.fromkeys([n for n in self.names if n not in self.missing] + timed):
            try:
                reply = self.group.ask("baseline", name=name, timeout=setting.limits.load_s)
                reason = next((r["reason"] for r in reply if r["reason"]), "")
            except Rejected as rejected:
                reason = str(rejected)
            if reason:
                self.missing[name] = reason
            if not self.group.alive:
                self._load()
                return
        self.names = [n for n in self.names if n not in self.missing]
        if not self.names:
            listed = "; ".join(f"{n}: {why}" for n, why in self.missing.items())
            raise UsageError(f"no baseline of {setting.task.name} can run here ({listed}); give others to --baselines.")

    def run(self, workload: Workload) -> Denominator:
        """Judge and time every baseline on a workload; the fastest right one is the denominator."""
        found = self.judged(workload)
        names = [n for n in self.names if n not in found.wrong]
        if not names:
            listed = "; ".join(f"{n}: {why}" for n, why in found.wrong.items())
            raise UsageError(f"every baseline fails on {workload.name} ({listed}); task or inputs are at fault.")
        plan = self.plan(workload, self.ceilings.floor(*self.cost(workload)))
        names = [n for n in names if self._warms_up(n, workload, plan, found)]
        if not names:
            listed = "; ".join(f"{n}: {why}" for n, why in found.wrong.items())
            raise UsageError(f"no baseline can be timed on {workload.name} ({listed}); give others to --baselines.")
        clock = Clock(self.group, workload, plan, names)
        clock.rounds(_ROUNDS, keep=False)
        times = {name: median(values) for name, values in clock.samples.seconds.items()}
        found.name = min(times, key=lambda n: times[n])
        found.seconds = times[found.name]
        self.results[workload.name] = found
        return found

    def _warms_up(self, name: str, workload: Workload, plan: Plan, found: Denominator) -> bool:
        """First calls of one baseline; one that fails or is too slow is left out, and the others go on."""
        try:
            Clock(self.group, workload, plan, [name]).warm_up()
        except Rejected as rejected:
            self._leave_out(name, rejected, found)
            return False
        return True

    def _leave_out(self, name: str, rejected: Rejected, found: Denominator) -> None:
        found.wrong[name] = str(rejected)
        if not self.group.alive:
            self.names.remove(name)
            self._load()

    def judged(self, workload: Workload) -> Denominator:
        """What the engines' baselines lose on a workload, and which of them are wrong there.

        On an edge workload, which is not timed, PyTorch's own are left out: they are no yardsticks, and compiling them
        for each shape takes longer than everything else.
        """
        found = Denominator(name="", seconds=0.0)
        if self.setting.world > 1 or self.setting.task.compare != "numeric":
            return found
        recipe = {"seed": seed()}
        judge = Judge(self.setting.task, self.setting.device, self.setting.checks)
        for name in [n for n in self.names if workload.phase != "edge" or self._engine(n) != "torch"]:
            try:
                reply = self.group.ask("call", workload=pack(workload), recipe=recipe, side=name)[0]
                got = judge.outputs(reply["outputs"], self.group.ranks[0].folder)
                want = expect(self.setting.task, workload, self.setting.device, recipe)
                self._admit(name, got, want, found)
            except Rejected as rejected:
                self._leave_out(name, rejected, found)
        return found

    def _admit(self, name: str, got: list[torch.Tensor], want: Expected, found: Denominator) -> None:
        """Take a baseline in, unless it is broken: then it must neither set the pace nor loosen the tolerance."""
        own = []
        for mine, truth, reference in zip(got, want.oracle, want.reference, strict=True):
            if mine.shape != reference.shape or mine.dtype != reference.dtype:
                raise Rejected(Status.BAD_OUTPUT, f"{mine.dtype} {list(mine.shape)}, unlike the reference's")
            if reference.is_floating_point():
                allowed = compare.tolerance(compare.measure(reference, truth, reference), reference.dtype,
                                            same_rounding=False)  # fmt: skip
                errors = compare.measure(mine.to(truth.device), truth, reference)
                if not errors.row <= 8 * allowed.row:
                    raise Rejected(Status.WRONG, f"row {errors.row_at} is off by {errors.row:.3g} (relative L2)")
                own.append(errors)
        if (
            self._engine(name) != "torch"
        ):  # Inductor leaves intermediate roundings out, which a kernel in an engine may not
            found.yardsticks += own

    def _engine(self, name: str) -> str:
        return {b.name: b.engine for b in self.setting.task.baselines}.get(name, "torch")

    def plan(self, workload: Workload, estimate_s: float) -> Plan:
        """How to time a workload whose calls take about `estimate_s`."""
        setting = self.setting
        calls = 1
        if setting.device == "cuda":
            bytes_, _ = self.cost(workload)
            # About 200 us under one pair of events, whose own resolution is half a microsecond.
            calls = max(2, min(24, int(200e-6 / max(estimate_s, 4e-6)), int((6 << 30) / max(bytes_, 1))))
        return Plan(
            mode=setting.mode, cold=True, calls=calls, budget_s=setting.budget_s, least=setting.least, most=setting.most
        )

    def cost(self, workload: Workload) -> tuple[int, int]:
        """Bytes and operations of one call."""
        cost = self.setting.task.cost(workload)
        return cost.bytes, cost.flops
