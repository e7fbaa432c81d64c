"""One line of a bench: a kernel on a workload."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from fk_plugin.bench.compare import Errors
from fk_plugin.bench.statistics import Ratio
from fk_plugin.bench.status import HARMLESS, Verdict


@dataclass(frozen=True, kw_only=True)
class Row:
    """The outcome; times are medians in seconds per call and exist only where the verdict is OK or NOISY.

    `ratio` is None unless the verdict is OK. `warm` is the ratio with a warm cache (graph mode). `samples` are
    seconds per call by side ("b" baseline, "c" candidate), one per round. `state` is clocks and temperature.
    """

    kernel: str
    source: str
    workload: str
    verdict: Verdict
    baseline: str = ""
    candidate_s: float | None = None
    baseline_s: float | None = None
    floor_s: float | None = None
    ratio: Ratio | None = None
    warm: Ratio | None = None
    parent_clock_s: float | None = None
    errors: Errors | None = None
    samples: dict[str, list[float]] = field(default_factory=dict)
    state: dict[str, str] = field(default_factory=dict)
    declined_edges: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether the run must fail for it."""
        return self.verdict.status not in HARMLESS

    def as_json(self) -> dict[str, Any]:
        """JSON types."""
        data = asdict(self)
        data["verdict"] = {"status": self.verdict.status.value, "reason": self.verdict.reason}
        return data
