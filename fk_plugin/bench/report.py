"""The table a person reads and the JSON file a program reads."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fk_plugin.bench.rows import Row
from fk_plugin.bench.session import Session
from fk_plugin.bench.status import Status


def micro(seconds: float | None) -> str:
    """Microseconds with three digits."""
    return "" if seconds is None else f"{seconds * 1e6:,.{max(0, 2 - int(math.log10(max(seconds * 1e6, 1))))}f}"


def table(rows: Sequence[Row], session: Session) -> Any:
    """A rich table; the baseline named in each line is the denominator of its speedup."""
    from rich.table import Table

    setting = session.setting
    ranks = f", {setting.world} ranks (the slowest counts)" if setting.world > 1 else ""
    title = f"{setting.task.name} on {session.environment.get('device', setting.device)}, mode {setting.mode}{ranks}"
    found = Table(title=title, title_justify="left", expand=False)
    for name in ("kernel", "workload", "status", "us", "baseline", "us", "speedup [95 % interval]"):
        found.add_column(name, justify="right" if name in ("us",) else "left", overflow="fold")
    if any(row.warm for row in rows):
        found.add_column("warm cache")
    for row, alike in _grouped(rows):
        where = row.workload if alike == 1 else f"{alike} workloads"
        speedup = f"{row.ratio.value:.2f}x [{row.ratio.low:.2f}, {row.ratio.high:.2f}]" if row.ratio else "-"
        cells = [row.kernel, where, row.verdict.status.value, micro(row.candidate_s), row.baseline,
                 micro(row.baseline_s), speedup]  # fmt: skip
        if any(r.warm for r in rows):
            cells.append(f"{row.warm.value:.2f}x" if row.warm else "-")
        found.add_row(*cells, style=None if not row.failed else "red")
    return found


def _grouped(rows: Sequence[Row]) -> list[tuple[Row, int]]:
    """Each row, or the first of several neighbours that share a kernel and a verdict without a number."""
    found: list[tuple[Row, int]] = []
    for row in rows:
        if found and row.candidate_s is None:
            last, count = found[-1]
            if last.candidate_s is None and (last.kernel, last.verdict) == (row.kernel, row.verdict):
                found[-1] = (last, count + 1)
                continue
        found.append((row, 1))
    return found


def remarks(rows: Sequence[Row], session: Session) -> list[str]:
    """One line for each thing that a number alone would hide."""
    lines = []
    seen: dict[tuple[str, Status, str], list[str]] = {}
    for row in rows:
        if not row.verdict.ok:
            seen.setdefault((row.kernel, row.verdict.status, row.verdict.reason), []).append(row.workload)
    for (kernel, status, reason), workloads in seen.items():
        where = workloads[0] if len(workloads) == 1 else f"{len(workloads)} workloads"
        lines.append(f"{kernel}: {status.value} on {where}: {reason}")
    for kernel, edges in {row.kernel: row.declined_edges for row in rows if row.declined_edges}.items():
        lines.append(f"{kernel}: declines {', '.join(edges)}; production would run its fallback there")
    lines += [f"baseline {name} cannot run here: {why}" for name, why in session.missing.items()]
    lines += [f"baseline {name} is wrong: {why}" for name, why in session.wrong_baselines.items()]
    speedups = [row.ratio.value for row in rows if row.ratio]
    if len(speedups) > 1 and not any(row.failed for row in rows) and len({row.kernel for row in rows}) == 1:
        mean = math.exp(sum(map(math.log, speedups)) / len(speedups))
        lines.append(f"geometric mean over {len(speedups)} workloads: {mean:.2f}x")
    return lines


def as_json(rows: Sequence[Row], session: Session, seconds: float) -> Mapping[str, Any]:
    """Everything, with samples and environment."""
    setting = session.setting
    return {
        "task": setting.task.name,
        "mode": setting.mode,
        "world": setting.world,
        "environment": session.environment,
        "missing_baselines": session.missing,
        "wrong_baselines": session.wrong_baselines,
        "seconds": round(seconds, 2),
        "rows": [row.as_json() for row in rows],
    }


def save(path: Path, data: Mapping[str, Any]) -> None:
    """Write JSON; infinities become strings, which JSON has no numbers for."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(_finite(data), indent=1) + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return value
