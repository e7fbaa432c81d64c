"""`fk status`: what the plugin did in engine processes that wrote their proofs into a folder."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from fk_plugin import env, proof
from fk_plugin.counters import read_events, read_folder
from fk_plugin.errors import UsageError

HELP = "list, for each engine process, which tasks are in force, which sites decline, and why"


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments."""
    parser.add_argument("folder", nargs="?", type=Path, help="the engine's FK_PROOF_DIR (default: that variable)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Print the table. 0: whatever is bound was called; 1: something is not in force that should be."""
    folder = args.folder or env.read().proof_dir
    if folder is None:
        raise UsageError("fk status needs the folder that the engine was started with as FK_PROOF_DIR; name it.")
    rows = read(folder)
    if args.json:
        print(json.dumps(rows, indent=2))
    else:
        from fk_plugin.cli.list import print_table

        print_table(rows)
    return int(any(row["state"] in ("stood down", "failed", "bound, never called", "bound nowhere") for row in rows))


def read(folder: Path) -> list[dict[str, Any]]:
    """One row for each process and task: pid, task, state and why.

    Raises:
        UsageError: no engine process has written into the folder.
    """
    events = list(read_events(folder)) if folder.is_dir() else []
    if not events:
        raise UsageError(
            f"{folder} holds no events of an engine; start one with FK_PROOF_DIR={folder} and FK_KERNELS set, and "
            "look again once its model is loaded. `fk doctor` says whether the engine can load the plugin at all."
        )
    counts = read_folder(folder)
    rows: list[dict[str, Any]] = []
    for event in events:
        kind, pid = event["event"], event["pid"]
        if kind == "model":
            used = proof.usage(counts.get(pid, {}))
            shared = event.get("shared", {})
            rows += [_bound(pid, t, names, used.get(t), shared.get(t)) for t, names in event["bound"].items()]
        elif kind == "declined":
            rows.append(_row(pid, event["task"], "declined", f"{event['owner']}: {event['reason']}"))
        elif kind in ("stood_down", "refused"):
            rows.append(_row(pid, "", "stood down", event["message"]))
        elif kind == "unavailable":
            rows.append(_row(pid, event["task"], "failed", f"{event['kernel']}: {event['reason']}"))
        elif kind == "kernel_error":
            rows.append(_row(pid, event["task"], "failed", event["message"]))
    declined = {(row["pid"], row["task"]) for row in rows if row["state"] == "declined"}
    # A class that declines is bound nowhere on purpose.
    rows = [r for r in rows if r["state"] != "bound nowhere" or (r["pid"], r["task"]) not in declined]
    return rows or [_row(e["pid"], "", "installed", "no model yet") for e in events if e["event"] == "installed"]


def _row(pid: int, task: str, state: str, why: str) -> dict[str, Any]:
    return {"pid": pid, "task": task, "state": state, "why": why}


def _bound(pid: int, task: str, names: list[str], used: proof.Usage | None, shared: str | None) -> dict[str, Any]:
    if not names:
        return _row(pid, task, "bound nowhere", "the model has no module of a class that this task replaces")
    where = f"{len(names)} modules" + (f" ({shared})" if shared else "")
    if used is None:
        return _row(pid, task, "left to the engine" if shared else "bound, never called", where)
    calls = ", ".join(f"{count} calls of {kernel}" for kernel, count in used.calls.items())
    left = ", ".join(f"{n} x {reason} -> {name}" for (name, reason), n in used.fallbacks.items())
    state = "in force" if used.calls else "bound, never called"
    return _row(pid, task, state, f"{where}; {'; '.join(filter(None, (calls, left)))}")
