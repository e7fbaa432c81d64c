"""The comparison as one table and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fk_plugin.e2e.run import Result
from fk_plugin.e2e.sides import Start
from fk_plugin.e2e.stats import median, span

SCHEMA = 1


def _speed(starts: Sequence[Start]) -> str:
    passes = [s.passes for s in starts]
    low, high = span(passes)
    return f"{median(passes):,.0f} tokens/s ({low:,.0f} to {high:,.0f})"


def _ratio(result: Result) -> str:
    assert result.ratio is not None
    r, starts, passes = result.ratio, result.request.starts, result.request.passes
    if starts * passes < 3:  # nothing to resample: an interval would look exact and mean nothing
        return f"{r.value:.3f} (no interval: {starts * passes} passes a side; raise --starts or --passes)"
    return f"{r.value:.3f} (95 % interval {r.low:.3f} to {r.high:.3f}; {starts} starts a side, {passes} passes each)"


def _start_up(starts: Sequence[Start]) -> str:
    return ", ".join(f"{s.start_seconds:.0f} s" for s in starts)


def rows(result: Result) -> list[tuple[str, str, str]]:
    """(what, verdict or empty, figures) for each line of the table."""
    request = result.request
    kernels = ", ".join(f"{task}={name}" for task, name in result.kernels.items())
    table = [
        ("model", "", f"{request.model}, {request.dtype}, {result.device}"),
        ("load", "", f"{request.requests} requests, {request.input_len} tokens in, {request.output_len} out, greedy"),
        ("engine", "", ", ".join(f"{v}" if k == "engine" else f"{k} {v}" for k, v in result.described.items())),
        ("kernels", "", kernels),
        ("baseline", "", _speed(result.baseline)),
        ("plugged", "", _speed(result.plugged)),
        ("ratio", "", _ratio(result)),
        ("start-up", "", f"baseline {_start_up(result.baseline)}; plugged {_start_up(result.plugged)}"),
    ]  # fmt: skip
    table += [(c.name, "pass" if c.passed else "FAIL", c.detail) for c in result.checks]
    failed = [c.name for c in result.checks if not c.passed]
    table.append(("verdict", "pass" if result.passed else "FAIL", f"failed: {'; '.join(failed)}" if failed else
                  f"all {len(result.checks)} checks hold"))  # fmt: skip
    return table


def show(result: Result) -> None:
    """Print the table to standard output."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=f"fk e2e {result.request.engine}", title_justify="left", show_header=False, show_lines=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    table.add_column(overflow="fold")
    for what, verdict, figures in rows(result):
        style = {"pass": "green", "FAIL": "red"}.get(verdict, "")
        table.add_row(what, Text(verdict, style=style), Text(figures))  # figures may hold brackets of their own
    # Piped output has no width of its own; 80 columns would break most figures.
    console = Console(highlight=False, emoji=False)
    console.width = console.width if console.is_terminal else 120
    console.print(table)


def to_json(result: Result) -> dict[str, Any]:
    """The comparison as plain data, schema 1."""
    request = result.request
    assert result.ratio is not None

    def side(starts: Sequence[Start]) -> list[dict[str, Any]]:
        return [
            {
                "label": s.label,
                "start_seconds": s.start_seconds,
                "tokens_per_second": s.passes,
                "processes": [
                    {
                        "pid": p.pid,
                        "forwards": p.forwards,
                        "bound": {task: len(names) for task, names in p.bound.items()},
                        "seen": {task: u.seen for task, u in p.usage.items()},
                        "forwards_on_device": p.device_forwards,
                        "seen_on_device": {task: u.seen for task, u in p.device_usage.items()},
                    }
                    for p in s.processes
                ],
            }
            for s in starts
        ]

    return {
        "schema": SCHEMA,
        "engine": request.engine,
        "engine_resolved": dict(result.described),
        "model": request.model,
        "dtype": request.dtype,
        "device": result.device,
        "requests": request.requests,
        "input_len": request.input_len,
        "output_len": request.output_len,
        "kernels": dict(result.kernels),
        "sites_per_forward": {task: sum(sites.values()) for task, sites in result.trace.items()},
        "baseline": side(result.baseline),
        "plugged": side(result.plugged),
        "replayed": side([result.replayed]) if result.replayed else None,
        "ratio": {"value": result.ratio.value, "low": result.ratio.low, "high": result.ratio.high},
        "accuracy": [
            {
                "what": j.what,
                "passed": j.passed,
                **j.difference.to_json(),
                "floor": j.floor.to_json(),
                "rounding": j.rounding.to_json() if j.rounding else None,
            }
            for j in result.judgements
        ],
        "checks": [{"name": c.name, "passed": c.passed, "detail": c.detail} for c in result.checks],
        "passed": result.passed,
    }
