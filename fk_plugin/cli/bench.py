"""`fk bench`: measure kernels of a task, ours or a stranger's, beside what production runs."""

from __future__ import annotations

import argparse
import fnmatch
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fk_plugin.cli._output import Progress, check_json
from fk_plugin.errors import UsageError

if TYPE_CHECKING:
    from fk_plugin.bench.setting import Setting
    from fk_plugin.task import Task

HELP = "measure kernels of a task: correct, honest, and how fast beside what production runs"


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("task", help="a task's name (see `fk list`), or FILE.py:TASK")
    parser.add_argument("--kernel", action="append", metavar="NAME|FILE.py[:NAME]", help="only this kernel; repeatable")
    parser.add_argument(
        "--workloads",
        default="*",
        metavar="GLOB",
        help="names of workloads: patterns with *, comma-separated, in quotes",
    )
    parser.add_argument("--mode", choices=("graph", "eager", "compile"), help="default: graph on CUDA, eager on a CPU")
    parser.add_argument("--baselines", default="", metavar="NAMES", help="comma-separated; default: all that can run")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda where a GPU is visible")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write samples, errors and environment to this file")
    parser.add_argument(
        "--gpus", type=int, default=1, metavar="N", help="ranks, for tasks that need several (default 1)"
    )
    parser.add_argument("--budget", type=float, default=6.0, metavar="SECONDS", help="timing per workload (default 6)")
    help_ = "longest request to a kernel, its import included (default 60)"
    parser.add_argument("--timeout", type=float, default=60.0, metavar="SECONDS", help=help_)
    help_ = "host memory a kernel may add; default: half of the machine's, 24 at most"
    parser.add_argument("--memory", type=float, metavar="GIB", help=help_)


def run(args: argparse.Namespace) -> int:
    """0: no kernel failed; 1: one failed, or all declined everything; 2 (raised): the request is impossible."""
    from fk_plugin.bench import report
    from fk_plugin.bench.session import Session
    from fk_plugin.bench.status import Status

    setting = _setting(args)
    kernels = [_existing(setting, spec) for spec in args.kernel] if args.kernel else _own_kernels(setting)
    check_json(args.json)
    start = time.perf_counter()
    progress = Progress(at_least=5.0)
    try:
        session = Session(setting, progress=progress)
        rows = session.run(kernels)
    finally:
        progress.done()
    _show(report.table(rows, session), report.remarks(rows, session))
    if args.json is not None:
        report.save(args.json, report.as_json(rows, session, time.perf_counter() - start))
        print(f"written to {args.json}")
    ran = any(row.verdict.status is not Status.DECLINED for row in rows)
    return 1 if any(row.failed for row in rows) or not ran else 0


def _setting(args: argparse.Namespace) -> Setting:
    import torch

    from fk_plugin.bench import locate
    from fk_plugin.bench.child import Limits
    from fk_plugin.bench.setting import Setting

    task = locate.task(args.task)
    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    for name, value in (("--budget", args.budget), ("--timeout", args.timeout), ("--memory", args.memory)):
        if value is not None and not value > 0:
            raise UsageError(f"{name} must be positive, got {value:g}.")
    if args.gpus < 1:
        raise UsageError(f"--gpus must be at least 1, got {args.gpus}.")
    return Setting(
        spec=args.task,
        device=device,
        mode=args.mode or ("graph" if device == "cuda" else "eager"),
        workloads=_workloads(task, args.workloads),
        edge_workloads=task.edge_workloads,
        baselines=tuple(filter(None, (b.strip() for b in args.baselines.split(",")))),
        limits=Limits(call_s=args.timeout, **({"memory": int(args.memory * 2**30)} if args.memory else {})),
        world=args.gpus,
        budget_s=args.budget,
    )


def _workloads(task: Task, patterns: str) -> tuple[Any, ...]:
    wanted = [p.strip() for p in patterns.split(",") if p.strip()]
    found = tuple(w for w in task.workloads if any(fnmatch.fnmatch(w.name, p) for p in wanted))
    if not found:
        names = ", ".join(w.name for w in task.workloads)
        raise UsageError(f"no workload of {task.name} matches {patterns!r}; it has {names}.")
    return found


def _existing(setting: Setting, spec: str) -> str:
    """The kernel's name as it came, if there is such a kernel; a stranger's file is not imported here."""
    from fk_plugin import registry

    if ".py" in spec:
        file = Path(spec.partition(":")[0]).expanduser()
        if not file.is_file():
            raise UsageError(f"--kernel expects a Python file or a registered name, and {file} is no file.")
        return spec
    if spec not in registry.kernels(setting.task.name)[0]:
        registry.kernel(setting.task.name, spec)  # raises with the nearest names, or why it cannot be imported
    return spec


def _own_kernels(setting: Setting) -> list[str]:
    from fk_plugin import dispatch, registry

    found, _ = registry.kernels(setting.task.name)
    fitting = [k for k in found.values() if k.requires.device in ("any", setting.device) and not k.wrong_on_purpose]
    names = [k.name for k in fitting if dispatch.unavailable(k) is None]
    if not names:
        raise UsageError(
            f"no kernel of {setting.task.name} can run on {setting.device} here; name one with --kernel FILE.py."
        )
    return names


def _show(table: Any, remarks: list[str]) -> None:
    from rich.console import Console

    width = None if sys.stdout.isatty() else 160
    console = Console(width=width, soft_wrap=False, emoji=False)
    console.print(table)
    for line in remarks:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
