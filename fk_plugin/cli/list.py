"""`fk list tasks|kernels|bindings`."""

from __future__ import annotations

import argparse
import json
from typing import Any

HELP = "list the tasks, kernels or bindings that are installed"


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments."""
    parser.add_argument("what", choices=("tasks", "kernels", "bindings"))
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Print the list; always 0."""
    rows = {"tasks": _tasks, "kernels": _kernels, "bindings": _bindings}[args.what]()
    if args.json:
        print(json.dumps(rows, indent=2))
    else:
        print_table(rows)
    return 0


def print_table(rows: list[dict[str, Any]]) -> None:
    """Left-aligned columns under the keys of the first row."""
    if not rows:
        print("none")
        return
    cells = [list(rows[0]), *([str(value) for value in row.values()] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    for line in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _tasks() -> list[dict[str, Any]]:
    from fk_plugin import registry

    return [
        {
            "task": task.name,
            "workloads": len(task.workloads),
            "overloads": ", ".join(o.name for o in task.overloads),
            "summary": task.summary,
        }
        for task in sorted(registry.tasks().values(), key=lambda t: t.name)
    ]


def _kernels() -> list[dict[str, Any]]:
    from fk_plugin import dispatch, registry

    rows = []
    for name in sorted(registry.tasks()):
        found, missing = registry.kernels(name)
        for kernel in sorted(found.values(), key=lambda k: k.name):
            reason = dispatch.unavailable(kernel)
            note = "wrong on purpose" if kernel.wrong_on_purpose else ""
            rows.append(
                {
                    "task": name,
                    "kernel": kernel.name,
                    "device": kernel.requires.device,
                    "dtypes": ", ".join(kernel.requires.dtypes),
                    "here": "no: " + reason if reason else "yes",
                    "note": note,
                }
            )
        for item in missing:
            rows.append(
                {
                    "task": name,
                    "kernel": item.name,
                    "device": "?",
                    "dtypes": "",
                    "here": f"no: {item.reason}",
                    "note": "",
                }
            )
    return rows


def _bindings() -> list[dict[str, Any]]:
    from fk_plugin import registry

    return [
        {
            "engine": binding.engine,
            "versions": binding.versions,
            "device": binding.device,
            "task": binding.task,
            "target": binding.target,
            "arguments": ", ".join(f"{k}={v}" for k, v in binding.arguments.items()),
        }
        for adapter in registry.adapters().values()
        for binding in adapter.bindings
    ]
