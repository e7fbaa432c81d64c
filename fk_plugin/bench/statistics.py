"""Samples -> a ratio with an interval, or the sentence that they are too noisy for one."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from fk_plugin.errors import FkError

BLOCK = 4
_FEW_BLOCKS = 5
# Half of what two captures of the same kernel differ by on an H200 (docs/results): not seen within one run.
INSTRUMENT = 0.004
_T = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228, 12: 2.179,
      15: 2.131, 20: 2.086, 30: 2.042, 60: 2.000, 1000: 1.962}  # fmt: skip


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


def ratio(baseline: Sequence[float], candidate: Sequence[float]) -> Ratio:
    """Ratio of times with a 95 % interval; both sequences hold one sample per round, in the order of rounds.

    Rounds are cut into blocks, neighbours together: what lasts over rounds (addresses of buffers, clocks, another
    program on the machine) is shared within a block and varies between blocks. The ratio of a block is that of its
    medians; the value is the geometric mean over blocks, and the interval is Student's over their logarithms, widened
    by what the instrument itself is unsure of.

    Raises:
        ZeroTime: a sample is not positive.
    """
    if len(baseline) != len(candidate):
        raise ValueError(f"expected one sample per side and round, got {len(baseline)} and {len(candidate)}")
    median(baseline), median(candidate)  # raise where a sample is not positive
    size = BLOCK if len(baseline) >= _FEW_BLOCKS * BLOCK else max(1, len(baseline) // _FEW_BLOCKS)
    starts = range(0, len(baseline) - size + 1, size)
    logs = [math.log(median(baseline[i : i + size]) / median(candidate[i : i + size])) for i in starts]
    center = statistics.fmean(logs)
    spread = statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.inf
    half = math.hypot(_student(len(logs) - 1) * spread, INSTRUMENT) if math.isfinite(spread) else math.inf
    return Ratio(value=math.exp(center), low=math.exp(center - half), high=math.exp(min(center + half, 700.0)))


def _student(freedom: int) -> float:
    """The 97.5 % quantile of Student's distribution (tables; linear between the listed degrees of freedom)."""
    below = max(n for n in _T if n <= max(freedom, 1))
    above = min((n for n in _T if n >= freedom), default=below)
    if above == below:
        return _T[below]
    return _T[below] + (_T[above] - _T[below]) * (freedom - below) / (above - below)


def too_noisy(found: Ratio, limit: float) -> str | None:
    """Why the interval is too wide to call it a number, or None."""
    if found.half_width <= limit:
        return None
    return f"the 95 % interval of the ratio is {found.low:.3g} to {found.high:.3g}, wider than ±{limit:.0%}"
