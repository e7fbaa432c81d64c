"""Samples -> a ratio with an interval, or the sentence that they are too noisy for one."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from fk_plugin.errors import FkError


class ZeroTime(FkError):
    """A sample of zero or negative seconds: nothing ran, or the clock did not."""


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """Baseline time over candidate time (above 1: the candidate is faster) with its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half the interval relative to the value."""
        return (self.high - self.low) / 2 / self.value


def median(samples: Sequence[float]) -> float:
    """Median of seconds per call.

    Raises:
        ZeroTime: a sample is not positive.
    """
    if not samples or min(samples) <= 0:
        raise ZeroTime(f"expected positive times, got {min(samples, default=None)} among {len(samples)} samples")
    return statistics.median(samples)


def ratio(baseline: Sequence[float], candidate: Sequence[float], *, seed: int = 0, draws: int = 2000) -> Ratio:
    """Ratio of medians; the interval resamples rounds, because the two samples of a round share its conditions.

    Both sequences hold one sample per round, in the order of rounds.

    Raises:
        ZeroTime: a sample is not positive.
    """
    if len(baseline) != len(candidate):
        raise ValueError(f"expected one sample per side and round, got {len(baseline)} and {len(candidate)}")
    value = median(baseline) / median(candidate)
    generator = random.Random(seed)
    count = len(baseline)
    found = []
    for _ in range(draws):
        picks = [generator.randrange(count) for _ in range(count)]
        found.append(statistics.median([baseline[i] for i in picks]) / statistics.median([candidate[i] for i in picks]))
    found.sort()
    low, high = found[int(0.025 * draws)], found[int(0.975 * draws) - 1]
    return Ratio(value=value, low=min(low, value), high=max(high, value))


def too_noisy(found: Ratio, limit: float) -> str | None:
    """Why the interval is too wide to call it a number, or None."""
    if found.half_width <= limit:
        return None
    return f"the 95 % interval of the ratio is {found.low:.3g} to {found.high:.3g}, wider than ±{limit:.0%}"
