"""Times one candidate on one workload, judges the results of the timed calls, and doubts the times."""

from __future__ import annotations

import functools
import random
import secrets
import time
from dataclasses import replace
from typing import Any

import torch

from fk_plugin.bench import measure, statistics
from fk_plugin.bench.candidate import Correctness
from fk_plugin.bench.group import Group
from fk_plugin.bench.measure import Clock, Outside
from fk_plugin.bench.race import Race
from fk_plugin.bench.setting import Setting
from fk_plugin.bench.statistics import ZeroTime
from fk_plugin.bench.status import Rejected, Status
from fk_plugin.task import Workload

_ATTEMPTS = 3  # each attempt measures anew and adds its samples
# On a GPU the host's launches vary by a seventh from sample to sample, so eager mode goes on until the interval is this
# narrow, or the time is spent.
_NARROW = 0.015
_ATTEMPTS_EAGER = 16
_CLEAN_FACTOR = {"cpu": 2.5, "cuda": 1.3}
_CLEAN_FACTOR_EAGER = 1.6  # on a GPU the host's launches are timed too, which spread more
_LOOK = 6  # looking at results may take this part of the time that timing may take
_CLOCK_FACTOR = 1.5
_OUTSIDE_FACTOR = 1.3  # what two processes on a shared machine differ by
_OUTSIDE_ATTEMPTS = 10
_PAUSE_S = 0.5  # before an attempt beyond the least: whatever else kept this machine busy may be over then
_OUTSIDE_LEAST = {"cpu": 3, "cuda": 1}
_AROUND_VARIES = 0.05  # of what surrounds a call, by which it differs between two processes
_READING_VARIES_S = 30e-6
_WORTH_FAKING = 0.9  # a number that nobody would put in production is not doubted, which costs time and can be wrong
_OUTSIDE_SLACK_S = {"cpu": 5e-6, "cuda": 1e-6}  # a call alone is slower than one of a thousand in a loop
_SLACK_S = {"cpu": 20e-6, "cuda": 3e-6}  # what pipes and scheduling add to a call on the parent's clock


def _written(got: list[torch.Tensor], reference: list[torch.Tensor]) -> None:
    """A replay must write its results, which held NaN before."""
    for output, want in zip(got, reference, strict=True):
        if output.is_floating_point() and output.numel() and bool(output.isnan().all()) and not want.isnan().all():
            raise Rejected(Status.STALE_OUTPUT, "a replay of its graph writes nothing: the work escaped the capture")


class Stopwatch:
    """One workload of one candidate."""

    def __init__(
        self, setting: Setting, race: Race, group: Group, correctness: Correctness, workload: Workload
    ) -> None:
        self.setting, self.race, self.group = setting, race, group
        self.correctness, self.workload = correctness, workload
        self.denominator = race.results[workload.name]
        self.side = f"b:{self.denominator.name}"
        self.moved, self.flops = race.cost(workload)
        self.claimed = 0.0
        self.plan = race.plan(workload, self.denominator.seconds)
        self._looked_s, self._may_look_s = 0.0, setting.budget_s / _LOOK

    def run(self) -> dict[str, Any]:
        """Times and ratio for a Row.

        Raises:
            Rejected: results of timed calls are wrong, late or stale, or the times cannot be.
        """
        clock = Clock(self.group, self.workload, self.plan, [self.side, "c"])
        per_round = clock.warm_up()
        found = self._rounds(clock, per_round)
        self._doubt(clock)
        return {
            "candidate_s": self.claimed,
            "baseline_s": statistics.median(clock.samples.seconds[self.side]),
            "floor_s": self._floor(),
            "ratio": found,
            "warm": self._warm(),
            "samples": {"b": clock.samples.seconds[self.side], "c": clock.samples.seconds["c"]},
        }

    def _rounds(self, clock: Clock, per_round_s: float) -> statistics.Ratio:
        """Time and judge until the interval is narrow enough; after a few attempts only while time is left."""
        cuda = self.setting.device == "cuda"
        eager = cuda and self.setting.mode == "eager"
        wanted = min(_NARROW, self.setting.noise) if eager else self.setting.noise
        end = time.monotonic() + self.setting.budget_s
        for attempt in range(1, 1 + (_ATTEMPTS_EAGER if eager else _ATTEMPTS)):
            for count in clock.batches(per_round_s, self._result_bytes(), (4 << 30) if cuda else (512 << 20)):
                self._judge(*clock.rounds(count, keep=True))
            found = self._ratio(clock)
            if found.half_width <= wanted:
                break
            if time.monotonic() > end and (attempt >= _ATTEMPTS or found.half_width <= self.setting.noise):
                break
        return found

    def _ratio(self, clock: Clock) -> statistics.Ratio:
        try:
            found = statistics.ratio(clock.samples.seconds[self.side], clock.samples.seconds["c"])
            self.claimed = statistics.median(clock.samples.seconds["c"])
        except ZeroTime as error:
            raise Rejected(Status.IMPLAUSIBLE, str(error)) from error
        return found

    def _warm(self) -> statistics.Ratio | None:
        """The ratio when every call finds its inputs in the cache; graph mode only."""
        if self.setting.device != "cuda" or self.setting.mode == "eager" or self.group.ranks[1:]:
            return None
        plan = measure.Plan(mode=self.plan.mode, cold=False, calls=self.plan.calls, budget_s=2.0, least=10, most=20)
        clock = Clock(self.group, self.workload, plan, [self.side, "c"])
        per_round = clock.warm_up()
        for count in clock.batches(per_round, 0):
            clock.rounds(count, keep=False)
        return statistics.ratio(clock.samples.seconds[self.side], clock.samples.seconds["c"])

    def _result_bytes(self) -> int:
        return max(self.moved // 2, 1)

    def _judge(self, replies: list[dict[str, Any]], kept: list[dict[str, int]]) -> None:
        """Look at results of timed calls: all that fit, chosen in secret after the fact."""
        on = self.setting.checks.on
        for reply in replies:
            if reply["late"] and on("late"):
                n = len(reply["late"])
                raise Rejected(Status.CHEAT_ASYNC, f"results of {n} calls changed after their time was taken")
            if reply["types"] and on("structure"):
                kind = reply["types"][0]
                raise Rejected(Status.BAD_OUTPUT, f"a timed call gave a {kind}, expected a plain torch.Tensor")
            if reply["reused"] and on("structure"):
                raise Rejected(Status.BAD_OUTPUT, "its result lies in the memory of an earlier call's, still in use")
        late = self._looked_s > self._may_look_s
        if not on("timed_outputs") or (late and secrets.randbelow(4)):  # looking is dear where results are large
            return
        if not on("fresh_timed"):
            kept = [kept[0]] * len(kept)
        region = self.setting.mode == "compile"  # Inductor leaves roundings out, inside the neighbours too
        chosen = measure.picks(len(kept), self._result_bytes())
        if late:
            chosen = [secrets.choice(chosen)]
        delivered = self.group.ask("deliver", picks=chosen, timeout=120)
        random.Random(secrets.randbits(64)).shuffle(chosen)
        before = self._looked_s
        start = time.monotonic()
        for done, pick in enumerate(chosen):
            self._looked_s = before + time.monotonic() - start
            if done >= 2 and self._looked_s > self._may_look_s:
                return
            wanted = self.correctness.expected(self.workload, kept[pick], compiled=region)
            for rank, (judge, reply) in enumerate(zip(self.correctness.judges, delivered, strict=True)):
                got = judge.outputs(reply["outputs"][str(pick)], self.group.ranks[rank].folder)
                if self.setting.device == "cuda" and self.setting.mode == "graph" and on("replay"):
                    _written(got, wanted[rank].reference)
                judge.values(f"timed call {pick}", got, wanted[rank], same_rounding=not region)

    def _floor(self) -> float:
        return self.race.ceilings.floor(self.moved, self.flops) if self.setting.mode != "compile" else 0.0

    def _doubt(self, clock: Clock) -> None:
        on = self.setting.checks.on
        floor = self._floor()
        if on("floor") and self.claimed < floor:
            raise Rejected(
                Status.IMPLAUSIBLE,
                f"{self.claimed * 1e6:.3g} us is less than the {floor * 1e6:.3g} us this device needs for "
                f"{self.moved} bytes and {self.flops} operations",
            )
        differs = measure.warm_up_differs(clock.samples)
        if differs and on("warmup"):
            raise Rejected(Status.CHEAT_WARMUP, differs)
        if on("clean_baseline"):
            self._clean_baseline(clock)

    def _clean_baseline(self, clock: Clock) -> None:
        """The baseline must be as fast in the candidate's process as in the clean one; doubts are measured again."""
        kind = self.setting.device
        beside = statistics.median(clock.samples.seconds[self.side])
        clean = self.denominator.seconds
        factor = _CLEAN_FACTOR_EAGER if kind == "cuda" and self.setting.mode == "eager" else _CLEAN_FACTOR[kind]
        for _ in range(_ATTEMPTS):
            if beside <= factor * clean + _SLACK_S[kind]:
                return
            again = Clock(self.race.group, self.workload, self.plan, [self.denominator.name])
            again.warm_up()
            again.rounds(self.setting.least, keep=False)
            clean = max(clean, statistics.median(again.samples.seconds[self.denominator.name]))
            more = Clock(self.group, self.workload, self.plan, [self.side])
            more.rounds(self.setting.least, keep=False)
            beside = min(beside, statistics.median(more.samples.seconds[self.side]))
        raise Rejected(
            Status.CHEAT_BASELINE,
            f"{self.denominator.name} takes {beside * 1e6:.3g} us beside it and {clean * 1e6:.3g} us without it",
        )

    def second_opinion(self, group: Group, timed: dict[str, Any]) -> float | None:
        """Seconds per call in a second process (`group`) on the parent's clock.

        The speedup that the candidate's own process claims must also be there between that process and the clean one,
        which holds the baseline and which the candidate never entered. On a GPU this is the speedup with a warm cache.

        Raises:
            Rejected: CHEAT_TIMER or CHEAT_BASELINE, by which of the two times was the false one.
        """
        cuda = self.setting.device == "cuda"
        plain = self._plain_time(group) if cuda else None
        ratio = timed["warm"] if cuda else timed["ratio"]
        if ratio is None or ratio.low < _WORTH_FAKING:
            return plain
        factor = _OUTSIDE_FACTOR if self.setting.world == 1 else 2.0  # waiting for other ranks spreads more
        mine, base = 0.0, 0.0
        seen: dict[str, Outside] = {}
        for attempt in range(1, _OUTSIDE_ATTEMPTS + 1):
            if attempt > _OUTSIDE_LEAST[self.setting.device]:
                time.sleep(_PAUSE_S)
            self._outside(group, seen)
            mine, base, unsure = self._per_call(seen)
            # One run of the baseline may meet another program on the machine, and excuse what should not be.
            enough = attempt >= _OUTSIDE_LEAST[self.setting.device]
            if enough and (base + unsure) * factor >= ratio.low * max(mine - unsure, 0.0):
                return mine
        text = (
            f"its process claims {ratio.value:.2f}x; on the parent's clock, in another process, it takes "
            f"{mine * 1e6:.3g} us, and {self.denominator.name} {base * 1e6:.3g} us where it never was"
        )
        slowed = timed["baseline_s"] / max(base, 1e-9)
        # Either is slower than in a tight loop, more or less; a baseline that was tampered with stands out.
        tampered = slowed > 1.5 * mine / self.claimed
        status = Status.CHEAT_BASELINE if tampered else Status.CHEAT_TIMER
        raise Rejected(status, text)

    def _outside(self, group: Group, seen: dict[str, Outside]) -> None:
        """Measure candidate ("c"), baseline ("b") and, on a CPU, what surrounds a call (""); the best of all counts."""
        clean, plan = self.race.group, self.plan
        if self.setting.device == "cuda":
            plan = replace(plan, cold=False)
        slower = max(self.claimed, self.denominator.seconds)  # as many calls of each, in memory in the same state
        sides = [("b", clean, self.denominator.name), ("c", group, "c")]
        if self.setting.device == "cpu":
            sides.append(("", clean, ""))
        for key, of, side in sides:
            # A GPU's graphs are captured with the values in place, so looking would show less there.
            look = functools.partial(self._look, of) if key == "c" and self.setting.device == "cpu" else None
            found = measure.by_parent_clock(of, self.workload, plan, side, slower, self.moved, look)
            seen[key] = found.better(seen[key]) if key in seen else found

    def _look(self, group: Group, replies: list[dict[str, Any]], recipe: dict[str, int]) -> None:
        """Judge a result that was produced on the parent's clock."""
        if not (self.setting.checks.on("timed_outputs") and self.setting.checks.on("second_outputs")):
            return
        region = self.setting.mode == "compile"
        wanted = self.correctness.expected(self.workload, recipe, compiled=region)
        for rank, (judge, reply) in enumerate(zip(self.correctness.judges, replies, strict=True)):
            got = judge.outputs(reply["outputs"], group.ranks[rank].folder)
            judge.values("a call on the parent's clock", got, wanted[rank], same_rounding=not region)

    def _per_call(self, seen: dict[str, Outside]) -> tuple[float, float, float]:
        """Seconds of the candidate's call, late reading included; of the baseline's; and what both are unsure by."""
        around = seen[""].run_s if "" in seen else 0.0
        late = 0.0
        if self.setting.device == "cpu":  # memory of a GPU cannot be filled by whoever looks at it
            late = max(seen["c"].read_s - seen["b"].read_s - _READING_VARIES_S, 0.0)
        unsure = _OUTSIDE_SLACK_S[self.setting.device] + seen["c"].unsure_s + _AROUND_VARIES * around
        return max(seen["c"].run_s - around, 0.0) + late, max(seen["b"].run_s - around, 0.0), unsure

    def _plain_time(self, group: Group) -> float:
        """On a GPU: the claimed time itself, which another process must reach in the same mode."""
        outside = measure.by_parent_clock(group, self.workload, self.plan, "c", self.claimed, self.moved)
        found, allowed = outside.run_s, _CLOCK_FACTOR * self.claimed + _SLACK_S["cuda"] + outside.unsure_s
        if found > allowed:
            # A machine that is busy now was perhaps idle before: the clean baseline says how much slower it has become.
            name, seconds = self.denominator.name, self.denominator.seconds
            now = measure.by_parent_clock(self.race.group, self.workload, self.plan, name, seconds, self.moved).run_s
            allowed *= max(1.0, now / seconds)
        if found > allowed:
            raise Rejected(
                Status.CHEAT_TIMER,
                f"its process claims {self.claimed * 1e6:.3g} us a call; on the parent's clock a second one takes "
                f"{found * 1e6:.3g} us",
            )
        return found
