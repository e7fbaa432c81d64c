"""Throughput of starts and passes: medians, and the ratio's bootstrap interval."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """Plugged throughput over the baseline's, with the 95 % interval."""

    value: float
    low: float
    high: float


def ratio(baseline: Sequence[Sequence[float]], plugged: Sequence[Sequence[float]], *, seed: int = 0) -> Ratio:
    """Ratio of median tokens/s; each argument holds one list of passes per engine start.

    The interval resamples starts first and passes within them, because passes of one start share its luck. With few
    starts it is honest only in the sense that it cannot be narrower than what was seen.
    """
    generator = random.Random(seed)

    def draw(starts: Sequence[Sequence[float]]) -> float:
        chosen = generator.choices(starts, k=len(starts))
        return statistics.median([x for start in chosen for x in generator.choices(start, k=len(start))])

    draws = sorted(draw(plugged) / draw(baseline) for _ in range(2000))
    value = median(plugged) / median(baseline)
    return Ratio(value=value, low=min(value, draws[49]), high=max(value, draws[1949]))


def median(starts: Sequence[Sequence[float]]) -> float:
    """Median over all passes of all starts."""
    return statistics.median([x for start in starts for x in start])


def span(starts: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Smallest and largest pass."""
    values = [x for start in starts for x in start]
    return min(values), max(values)
