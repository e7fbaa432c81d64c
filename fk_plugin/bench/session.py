"""One `fk bench`: baselines race in a clean process, then each candidate is examined and timed in its own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fk_plugin.bench import compare, environment, linter, statistics
from fk_plugin.bench.candidate import Correctness, Declined, describe_edge, hidden
from fk_plugin.bench.child import Nursery, NurseryLost, printable
from fk_plugin.bench.files import Seal
from fk_plugin.bench.group import Group
from fk_plugin.bench.judge import expect
from fk_plugin.bench.race import REGION, Race
from fk_plugin.bench.rows import Row
from fk_plugin.bench.setting import Setting
from fk_plugin.bench.status import OK, Rejected, Status, Verdict
from fk_plugin.bench.stopwatch import Stopwatch
from fk_plugin.errors import UsageError
from fk_plugin.task import Workload

Progress = Callable[[str], None]
# After these a process is not to be trusted with another workload: a CUDA context, for one, does not survive an error.
_LINTED = 8
_UNUSABLE = (Status.CRASHED, Status.OUT_OF_MEMORY)


class Session:
    """Runs candidates one after the other. `protected` are files, besides the product's, that must not change."""

    def __init__(
        self,
        setting: Setting,
        *,
        progress: Progress = lambda text: None,
        protected: tuple[Path, ...] = (),
    ) -> None:
        self.setting, self.progress, self.protected = setting, progress, protected
        self._nursery: Nursery | None = None
        self._race: Race | None = None
        self.missing: dict[str, str] = {}
        self.wrong_baselines: dict[str, str] = {}
        self.environment: dict[str, Any] = {}

    def run(self, kernels: Sequence[str]) -> list[Row]:
        """A row for every kernel and workload.

        Raises:
            UsageError: the task itself cannot be judged or timed here.
        """
        with self:
            return [row for spec in kernels for row in self.examine(spec)]

    def __enter__(self) -> Session:
        """Lint the task, start the clean processes and let the baselines race."""
        setting = self.setting
        self._nursery = Nursery()
        try:
            with ThreadPoolExecutor(1) as beside:
                warm = beside.submit(self._warm_up_oracle)
                self._lint()
                self._race = race = Race(self._nursery, setting)
                warm.result()
            self.missing, self.environment = race.missing, environment.describe(setting.device)
            for workload in setting.workloads:
                self.progress(f"baselines on {workload.name}")
                found = race.run(workload)
                self.wrong_baselines |= {f"{name} on {workload.name}": why for name, why in found.wrong.items()}
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._nursery is not None:
            self._nursery.__exit__()
        self._nursery = self._race = None

    def examine(self, spec: str, setting: Setting | None = None, environ: dict[str, str] | None = None) -> list[Row]:
        """The rows of one kernel; inside the context only. `setting` may differ in checks and limits."""
        candidate = _Candidate(self, spec, setting or self.setting, environ or {})
        assert self._nursery is not None and self._race is not None  # entered
        try:
            rows = candidate.rows()
            self._nursery.check()  # a candidate may answer and be gone before the signal it sent has arrived
            return rows
        except NurseryLost as lost:
            self._nursery.__exit__()
            self._nursery = Nursery()
            self._race.move(self._nursery)
            return candidate.all(Verdict(status=Status.CRASHED, reason=f"while it ran, {lost}"))
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            # Answers that lack what was asked for, or hold something else; the other candidates' rows must not go too.
            reason = f"its process gave an answer that cannot be read ({type(error).__name__}: {error})"
            return candidate.all(Verdict(status=Status.CHEAT_CHANNEL, reason=printable(reason)))

    def _warm_up_oracle(self) -> None:
        """Judge something while the processes load: on a GPU, first uses of float64 operators take seconds."""
        setting = self.setting
        if setting.device == "cuda" and setting.world == 1 and setting.task.compare == "numeric":
            want = expect(setting.task, setting.workloads[0], setting.device, {"seed": 0})
            for reference, oracle in zip(want.reference, want.oracle, strict=True):
                compare.measure(reference, oracle, reference)

    def _lint(self) -> None:
        setting = self.setting
        if not setting.checks.on("linter") or setting.world > 1 or not setting.workloads:
            return
        # A workload may fix an argument, as a balanced routing does; then the next one must vary it.
        smallest = sorted(setting.task.workloads, key=lambda w: setting.task.cost(w).bytes)[:_LINTED]
        complaints: list[str] = []
        for workload in smallest:
            found = linter.lint(setting.task, workload, setting.device)
            complaints = complaints or found
            if not found:
                return
        if complaints:
            raise UsageError(f"task {setting.task.name} cannot tell right from wrong: {'; '.join(complaints)}.")


class _Candidate:
    """One candidate: its processes and its rows."""

    def __init__(self, session: Session, spec: str, setting: Setting, environ: dict[str, str]) -> None:
        assert session._nursery is not None and session._race is not None  # entered
        self.session, self.spec, self.setting, self.environ = session, spec, setting, environ
        self.nursery, self.race = session._nursery, session._race
        self.name, self.source = spec, ""
        self.declined: list[str] = []
        self.group: Group | None = None
        self.correctness: Correctness | None = None
        self._second: Group | None = None
        self._loader = ThreadPoolExecutor(1)
        self._loading: Future[tuple[Group, dict[str, Any]]] | None = None

    def rows(self) -> list[Row]:
        """A row for every workload; whatever happens, the processes end here."""
        seal = Seal(self.session.protected)
        try:
            rows = self._rows()
        finally:
            with contextlib.suppress(Rejected, NurseryLost):  # what the first process did is known by now
                self._take_second()
            self._loader.shutdown()
            for group in (self.group, self._second):
                if group is not None:
                    group.close()
        changed = seal.broken()
        if changed and self.setting.checks.on("files"):
            names = ", ".join(changed)
            reason = f"{names} changed while it ran; if that was not you, restore it before the next run"
            return self.all(Verdict(status=Status.CHEAT_FILES, reason=reason))
        return rows

    def _rows(self) -> list[Row]:
        try:
            self._start()
            self._audit()
            if self.setting.checks.on("parent_clock"):  # it takes a while, and is needed last
                self._loading = self._loader.submit(self.load)
            self._edges()
        except Rejected as rejected:
            return self.all(rejected.verdict)
        rows = []
        for workload in self.setting.workloads:
            self.session.progress(f"{self.name} on {workload.name}")
            try:
                if self.group is None or not self.group.alive:
                    self._start()
                rows.append(self._measure(workload))
            except Declined as declined:
                rows.append(self._row(workload, Verdict(status=Status.DECLINED, reason=str(declined))))
            except Rejected as rejected:
                rows.append(self._row(workload, rejected.verdict))
                if self.group is not None and rejected.verdict.status in _UNUSABLE:
                    self.group.close()
        return rows

    def all(self, verdict: Verdict) -> list[Row]:
        """The same verdict on every workload."""
        return [self._row(workload, verdict) for workload in self.setting.workloads]

    def _row(self, workload: Workload, verdict: Verdict, **more: Any) -> Row:
        return Row(
            kernel=self.name, source=self.source, workload=workload.name, verdict=verdict,
            declined_edges=tuple(self.declined), **more,
        )  # fmt: skip

    def load(self) -> tuple[Group, dict[str, Any]]:
        """A fresh group of processes with the candidate and every denominator loaded."""
        setting = self.setting
        group = Group(
            self.nursery, setting.limits, world=setting.world, environ=self.environ,
            check_nonce=setting.checks.on("nonce"),
        )  # fmt: skip
        names = {found.name for found in self.race.results.values()}
        try:
            group.load(
                timeout=setting.limits.load_s, task=setting.spec, device=setting.device,
                sides={f"b:{name}": name for name in names}, disabled=sorted(setting.checks.disabled),
            )  # fmt: skip
            meta = group.ask("candidate", kernel=self.spec)[0]
        except Rejected:
            group.close()
            raise
        return group, meta

    def _start(self) -> None:
        self.session.progress(f"{self.name}: loading")
        self.group, meta = self.load()
        self.name, self.source = meta["name"], meta["source"]
        oracle_ranks = self.race.group if self.setting.world > 1 else None
        self.correctness = Correctness(self.setting, self.group, oracle_ranks, takes_out=meta["takes_out"])

    def _audit(self, group: Group | None = None) -> None:
        group = group or self.group
        assert group is not None
        on = self.setting.checks.on
        for reply in group.ask("audit"):
            if reply["replaced"] and on("patched"):
                raise Rejected(Status.CHEAT_PATCH, f"it replaced {', '.join(reply['replaced'][:5])}")
            if reply["left_on"] and on("modes"):
                raise Rejected(Status.CHEAT_PATCH, f"it left {', '.join(reply['left_on'][:3])}")
            if reply["left"] and on("threads"):
                raise Rejected(Status.CHEAT_ASYNC, f"it left {', '.join(reply['left'])} running")
            l2_before, l2 = reply["l2"]
            if l2 != l2_before and on("l2_persistence"):
                raise Rejected(Status.CHEAT_CACHE, f"it set {l2} bytes of the L2 cache aside ({l2_before} before)")

    def _edges(self) -> None:
        assert self.correctness is not None
        on, setting = self.setting.checks.on, self.setting
        edges = list(setting.edge_workloads) if on("edge") else []
        if on("hidden_shapes"):
            edges += hidden(setting.workloads, setting.hidden)
        for workload in edges:
            self.session.progress(f"{self.name} on {workload.name}")
            try:
                self.correctness.workload(workload, self.race.judged(workload).yardsticks, timed=False)
            except Declined as declined:
                self.declined.append(f"{workload.name}: {declined}")
            except Rejected as rejected:
                raise describe_edge(workload, rejected) from rejected

    def _measure(self, workload: Workload) -> Row:
        assert self.group is not None and self.correctness is not None
        denominator = self.race.results[workload.name]
        self.correctness.workload(workload, denominator.yardsticks, timed=True)
        self._audit()
        self._take_second()  # nothing else runs while the clock does
        stopwatch = Stopwatch(self.setting, self.race, self.group, self.correctness, workload)
        before = environment.ask(self.setting.device)
        timed = stopwatch.run()
        after = environment.ask(self.setting.device)
        self._audit()
        second = self._second_opinion(stopwatch, timed) if self.setting.checks.on("parent_clock") else None
        noisy = statistics.too_noisy(timed["ratio"], self.setting.noise)
        verdict = OK if noisy is None else Verdict(status=Status.NOISY, reason=noisy)
        if noisy is not None:
            timed["ratio"] = timed["warm"] = None
        name = REGION if self.setting.mode == "compile" else denominator.name
        state = {f"{k} {when}": v for when, ask in (("before", before), ("after", after)) for k, v in ask().items()}
        return self._row(
            workload, verdict, baseline=name, errors=self.correctness.errors, parent_clock_s=second, state=state,
            **timed,
        )  # fmt: skip

    def _take_second(self) -> None:
        """Wait for the process of the second opinion, if it is being loaded."""
        loading, self._loading = self._loading, None
        if loading is not None:
            self._second, _ = loading.result()

    def _second_opinion(self, stopwatch: Stopwatch, timed: dict[str, Any]) -> float | None:
        if self._second is None or not self._second.alive:
            self._second, _ = self.load()  # it has ended since
        found = stopwatch.second_opinion(self._second, timed)
        self._audit(self._second)
        return found
