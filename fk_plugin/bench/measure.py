"""Timing in the parent: schedules, which results to look at afterwards, and the second opinion on its own clock."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fk_plugin.bench.contents import pack
from fk_plugin.bench.group import Group
from fk_plugin.bench.statistics import BLOCK
from fk_plugin.bench.status import Rejected, Status
from fk_plugin.bench.timer import KEPT
from fk_plugin.bench.timing import RENEW
from fk_plugin.task import Workload

_LOOK_AT_BYTES = 64 << 20  # results of timed calls that are judged: all of them up to this, else a secret choice
_WARM = 5
_MESSAGE_S = 100e-6  # by how much the cost of a request varies


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How to time one workload: mode, cold or warm cache, calls per sample, seconds to spend, rounds at least and most.

    A round is one sample of each side, in random order.
    """

    mode: str
    cold: bool
    calls: int = 1
    budget_s: float = 6.0
    least: int = 10
    most: int = 60

    @property
    def renews(self) -> bool:
        """Whether buffers and graphs last over samples, and must be made anew after each block of rounds."""
        return self.mode != "eager" and self.calls > 1


@dataclass
class Samples:
    """Seconds per call by side, one per round; `warm` are the calls before. `kept` names the candidate's calls."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    warm: dict[str, list[float]] = field(default_factory=dict)


def seed() -> int:
    """A seed that no candidate can know before its call."""
    return secrets.randbelow(1 << 31)


def _recipes(count: int) -> list[dict[str, int]]:
    return [{"seed": seed()} for _ in range(count)]


def _slowest(replies: list[dict[str, Any]]) -> list[float]:
    """Per sample, the slowest rank's seconds."""
    return [max(values) for values in zip(*(r["seconds_per_call"] for r in replies), strict=True)]


class Clock:
    """Times sides of one group on one workload."""

    def __init__(self, group: Group, workload: Workload, plan: Plan, sides: list[str]) -> None:
        self.group, self.workload, self.plan, self.sides = group, workload, plan, sides
        self.samples = Samples(seconds={s: [] for s in sides}, warm={s: [] for s in sides})
        self.order = random.Random(secrets.randbits(64))
        self._rounds = 0

    def _run(self, schedule: list[list[Any]], *, keep: bool) -> tuple[list[float], list[dict[str, Any]]]:
        replies = self.group.ask(
            "time", workload=pack(self.workload), mode=self.plan.mode, cold=self.plan.cold, schedule=schedule, keep=keep
        )
        return _slowest(replies), replies

    def warm_up(self) -> float:
        """A few calls of each side (compiling, tuning, lazy set-up); seconds that one round costs in all."""
        schedule: list[list[Any]] = []
        for _ in range(_WARM):
            schedule += [[side, _recipes(self.plan.calls)] for side in self.sides]
        seconds, _ = self._run(schedule[: len(self.sides)], keep=False)
        for (side, _), value in zip(schedule, seconds, strict=False):
            self.samples.warm[side].append(value)
        rest = schedule[len(self.sides) :]
        seconds, replies = self._run(rest, keep=False)
        for (side, _), value in zip(rest, seconds, strict=True):
            self.samples.warm[side].append(value)
        return float(max(r["seconds"] for r in replies)) / (_WARM - 1)

    def rounds(self, count: int, *, keep: bool) -> tuple[list[dict[str, Any]], list[dict[str, int]]]:
        """`count` rounds; the replies, and the recipes of the candidate's calls in the order they were kept."""
        schedule: list[list[Any]] = []
        counts: list[bool] = []
        for _ in range(count):
            rounds = 1
            if self.plan.renews and self._rounds % BLOCK == 0:
                # The first run of a graph over memory just mapped takes a copy of 256 MiB 10 % longer.
                schedule.append([RENEW, []])
                rounds = 2
            self._rounds += 1
            for number in range(rounds):
                schedule += [[side, _recipes(self.plan.calls)] for side in self._shuffled()]
                counts += [number == rounds - 1] * len(self.sides)
        seconds, replies = self._run(schedule, keep=keep)
        timed = [side for side, _ in schedule if side != RENEW]
        for side, value, taken in zip(timed, seconds, counts, strict=True):
            if taken:
                self.samples.seconds[side].append(value)
        kept = [recipe for side, recipes in schedule if side == "c" for recipe in recipes]
        return replies, kept

    def _shuffled(self) -> list[str]:
        sides = self.sides[:]
        self.order.shuffle(sides)
        return sides

    def batches(self, per_round_s: float, kept_bytes: int, most_bytes: int = 512 << 20) -> list[int]:
        """Rounds to do, cut so that the kept results of one request stay within bounds."""
        count = int(self.plan.budget_s / max(per_round_s, 1e-4))
        count = max(self.plan.least, min(self.plan.most, count))
        room = max(1, most_bytes // max(kept_bytes * self.plan.calls, 1))
        return [min(room, count - start) for start in range(0, count, room)]


def picks(count: int, size: int) -> list[int]:
    """Which of `count` kept calls to look at, each of `size` bytes: all, or a secret choice of at least two."""
    affordable = max(2, _LOOK_AT_BYTES // max(size, 1))
    if affordable >= count:
        return list(range(count))
    return sorted(random.Random(secrets.randbits(64)).sample(range(count), affordable))


def warm_up_differs(samples: Samples) -> str | None:
    """Why warm-up calls after the first look unlike timed ones (a harness that picks counts from them is misled)."""
    warm, timed = sorted(samples.warm["c"][1:]), sorted(samples.seconds["c"])
    if not warm or not timed:
        return None
    fastest, usual = warm[0], timed[len(timed) // 2]
    if fastest > 10 * usual and fastest - usual > 5e-3:
        return f"every warm-up call took over {fastest * 1e3:.1f} ms, a timed one {usual * 1e3:.3g} ms"
    return None


@dataclass(frozen=True, kw_only=True)
class Outside:
    """Seconds per call on this process's clock: of the calls with all that surrounds them, and of reading results.

    `unsure_s` is what the messages around a run of so many calls add at most.
    """

    run_s: float
    read_s: float
    unsure_s: float = 0.0

    def better(self, other: Outside) -> Outside:
        """The smaller of each."""
        return Outside(
            run_s=min(self.run_s, other.run_s),
            read_s=min(self.read_s, other.read_s),
            unsure_s=min(self.unsure_s, other.unsure_s),
        )


def by_parent_clock(
    group: Group, workload: Workload, plan: Plan, side: str, estimate_s: float, set_bytes: int,
    look: Callable[[list[dict[str, Any]], dict[str, int]], None] | None = None,
) -> Outside:  # fmt: skip
    """The best of three runs of many prepared calls, less an empty request; `side` as in timing.Bench.prepare.

    `look` gets the ranks' replies with the result of one of the last calls, chosen in secret, and that call's recipe.
    """
    memory = max(1, (256 << 20) // max(set_bytes, 1))
    wanted = max(4, min(2000, int(0.04 / max(estimate_s, 1e-9))))
    if plan.mode == "eager" or plan.calls == 1:
        sets = min(wanted, memory, 2000)
        repeats = 1 if plan.calls == 1 else max(1, wanted // sets)  # on a CPU, results are kept, and memory is short
    else:
        sets, repeats = plan.calls, max(1, min(5000, wanted * 4 // plan.calls))
    run = read = float("inf")
    how: dict[str, Any] = {"workload": pack(workload), "mode": plan.mode, "cold": plan.cold, "side": side}
    for _ in range(3):
        recipes = _recipes(sets)
        if side:
            group.ask("warm", recipes=_recipes(1), **how)
        replies = group.ask("prepare", recipes=recipes, repeats=repeats, **how)
        calls = replies[0]["calls"]
        if calls != sets * repeats:
            raise Rejected(Status.CHEAT_CHANNEL, f"asked for {sets * repeats} calls, {calls} were made ready")
        go, touch, idle = (_seconds(group, op) for op in ("go", "touch", "idle"))
        run = min(run, max(go - idle, 0.0) / calls)
        read = min(read, max(touch - idle, 0.0) / min(calls, KEPT))
        if look is not None:
            kept = min(calls, KEPT)
            pick = secrets.randbelow(kept)
            look(group.ask("gone", pick=pick), recipes[(calls - kept + pick) % sets])
    return Outside(run_s=run, read_s=read, unsure_s=_MESSAGE_S / calls)


def _seconds(group: Group, op: str) -> float:
    return float(max(r["seconds"] for r in group.ask(op)))
