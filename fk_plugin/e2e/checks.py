"""The checks of a comparison. Each names what it found; none can pass on missing data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fk_plugin.e2e import accuracy
from fk_plugin.e2e.sides import Process, Start

if TYPE_CHECKING:
    from fk_plugin.e2e.run import Result


@dataclass(frozen=True, kw_only=True)
class Check:
    """One check, its verdict, and the figures behind it."""

    name: str
    passed: bool
    detail: str


def use(result: Result) -> list[Check]:
    """Bound, called, used, off, uncached and judged, over every start."""
    found = [_off(result.baseline), _uncached([*result.baseline, *result.plugged])]
    found.append(_timed(result.baseline[0], result.plugged))
    for task in result.kernels:
        sites = dict(result.trace.get(task, {}))
        found.append(_bound(task, sites, result.plugged))
        if result.replayed is not None:
            found.append(_replayed(task, sites, result.replayed))
        else:
            found.append(_called(task, sites, result.plugged))
        found.append(_used(task, result.plugged))
        found.append(_judged(task, result.replayed or result.plugged[0]))
    return found


def bound_calls(process: Process, task: str, sites: dict[str, int]) -> int:
    """Calls per forward at the sites this process bound."""
    return sum(sites.get(name, 0) for name in process.bound.get(task, ()))


def _bound(task: str, sites: dict[str, int], starts: Sequence[Start]) -> Check:
    present = sum(sites.values())
    bound = [bound_calls(p, task, sites) for s in starts for p in s.processes]
    why = sorted({sentence for s in starts for sentence in s.stood_down})
    return Check(
        name=f"bound, {task}",
        passed=present > 0 and bool(bound) and all(b == present for b in bound),
        detail=f"{min(bound, default=0)} of {present} sites in each of {len(bound)} processes"
        + (f"; {'; '.join(why)}" if why else ""),
    )


def _called(task: str, sites: dict[str, int], starts: Sequence[Start]) -> Check:
    rows = []
    good = True
    for start in starts:
        for process in start.processes:
            expected = bound_calls(process, task, sites) * process.forwards
            seen = process.usage[task].seen if task in process.usage else 0
            good &= _as_expected(process, task, seen, expected)
            rows.append(f"{seen} of {expected}{_shared(process, task)}")
    return Check(
        name=f"called, {task}", passed=good and bool(rows), detail=f"calls seen of expected: {', '.join(rows)}"
    )


def _as_expected(process: Process, task: str, seen: int, expected: int) -> bool:
    """Every call that was due; where the engine shares the sites, some of them."""
    return 0 < seen <= expected if task in process.shared else 0 < seen == expected


def _shared(process: Process, task: str) -> str:
    return f" at most ({process.shared[task]})" if task in process.shared else ""


def _replayed(task: str, sites: dict[str, int], start: Start) -> Check:
    rows = []
    good = True
    for process in start.processes:
        expected = bound_calls(process, task, sites) * process.device_forwards
        seen = process.device_usage[task].seen if task in process.device_usage else 0
        python = process.usage[task].seen if task in process.usage else 0
        good &= _as_expected(process, task, seen, expected)
        rows.append(
            f"{seen} of {expected}{_shared(process, task)} in {process.device_forwards} forwards ({python} from "
            "Python, the rest replayed)"
        )
    return Check(
        name=f"called, {task}", passed=good and bool(rows), detail=f"calls counted on the GPU: {', '.join(rows)}"
    )


def _used(task: str, starts: Sequence[Start]) -> Check:
    calls = 0
    reasons: dict[str, int] = {}
    for start in starts:
        for process in start.processes:
            if task in process.usage:
                calls += sum(process.usage[task].calls.values())
                for (fallback, reason), number in process.usage[task].fallbacks.items():
                    label = f"{reason} -> {fallback}"
                    reasons[label] = reasons.get(label, 0) + number
    said = ", ".join(f"{n} x {label}" for label, n in reasons.items()) or "none"
    if not calls and reasons:
        said = f"bound, never used: {said}"
    return Check(name=f"kernel ran, {task}", passed=calls > 0, detail=f"{calls} calls by the kernel; fallbacks: {said}")


def _off(starts: Sequence[Start]) -> Check:
    seen = sum(u.seen for s in starts for p in s.processes for u in p.usage.values())
    forwards = [p.forwards for s in starts for p in s.processes]
    return Check(
        name="plugin off",
        passed=seen == 0 and bool(forwards) and all(f > 0 for f in forwards),
        detail=f"{seen} calls of our operators in {sum(forwards)} forwards of the baseline",
    )


def _uncached(starts: Sequence[Start]) -> Check:
    served, cached = sum(s.served for s in starts), sum(s.cached for s in starts)
    return Check(
        name="no prefix cache", passed=served > 0 and cached == 0, detail=f"{cached} cached tokens in {served} requests"
    )


def _timed(baseline: Start, starts: Sequence[Start]) -> Check:
    """The answers of the passes that the clock saw must be those of the pass that was judged, in every start."""
    rates = []
    limit = accuracy.RATE_SLACK
    if baseline.judged is not None and starts[0].judged is not None:
        expected = [c.tokens for c in baseline.judged.decode]
        own = accuracy.change_rate(expected, [c.tokens for c in starts[0].judged.decode])
        limit += accuracy.RATE_FACTOR * own
        rates = [accuracy.change_rate(expected, answers) for start in starts for answers in start.timed]
    return Check(
        name="timed passes",
        passed=bool(rates) and all(start.timed for start in starts) and max(rates) <= limit,
        detail=f"at most {max(rates, default=1.0):.3f} changes a token in {len(rates)} passes (limit {limit:.3f})",
    )


def _judged(task: str, start: Start) -> Check:
    called, judged = start.called_buckets.get(task, set()), start.judged_buckets.get(task, set())
    missing = sorted(called - judged)
    detail = f"token buckets called {sorted(called)}, all judged"
    if missing:
        detail = f"token buckets called but not judged: {missing}"
    return Check(name=f"judged, {task}", passed=bool(called) and not missing, detail=detail)


def spread(value: float) -> Check:
    """The model's token probabilities must differ enough for a wrong kernel to show."""
    least = accuracy.SMALLEST_SPREAD
    return Check(
        name="log-probabilities spread",
        passed=value >= least,
        detail=f"standard deviation {value:.2f} nats over prompt tokens (at least {least:.0f}, else no check can fail)",
    )


def canary(task: str, start: Start, judgements: Sequence[accuracy.Judgement]) -> Check:
    """The wrong kernel must have run and must have been refused by both judgements."""
    ran = sum(n for p in start.processes if task in p.usage for n in p.usage[task].calls.values())
    refused = ran > 0 and all(j.judgeable and not j.passed for j in judgements)
    if not ran:
        detail = f"the wrong {task} was never called, so this run has no accuracy verdict"
    elif not refused:
        detail = f"the wrong {task} passed: " + "; ".join(j.sentence() for j in judgements if j.passed)
    else:
        detail = f"the wrong {task} is refused: " + "; ".join(j.sentence() for j in judgements)
    return Check(name=f"canary, {task}", passed=refused, detail=detail)
