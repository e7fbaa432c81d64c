"""Reads the folders of cheats/ and honest/: what each must be caught as, and by which checks."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

from fk_plugin.bench.status import Status

ROOT = Path(__file__).resolve().parent
# One workload per task: large enough that the floor is far above a call's own overhead.
WORKLOADS = {
    "silu_and_mul": "smollm2-135m-decode-256",
    "softmax": "smollm2-135m-decode-8",
    "rms_norm": "smollm2-135m-decode-128",
    "fused_add_rms_norm": "smollm2-135m-decode-128",
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A kernel file with the fields of its docstring; `status` is None for an honest one.

    `by` are the checks without which it passes (or ends as `without`).
    """

    name: str
    file: Path
    task: str
    device: str
    status: Status | None = None
    by: frozenset[str] = frozenset()
    without: Status = Status.OK
    hacks: tuple[int, ...] = ()


def load(folder: str, device: str) -> list[Case]:
    """The cases of cheats/ or honest/ for a device."""
    cases = [_case(path) for path in sorted((ROOT / folder).glob("*/kernel.py"))]
    return [case for case in cases if case.device == device]


def _case(file: Path) -> Case:
    text = ast.get_docstring(ast.parse(file.read_text())) or ""
    fields = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line and line.split(": ")[0] in _FIELDS)
    if "Caught as" not in fields:
        return Case(name=file.parent.name, file=file, task=fields["Task"], device=fields["Device"])
    return Case(
        name=file.parent.name,
        file=file,
        task=fields["Task"],
        device=fields["Device"],
        status=Status(fields["Caught as"]),
        by=frozenset(name.strip() for name in fields["By"].split(",")),
        without=Status(fields["Without"]),
        hacks=tuple(int(n) for n in fields["Hacks"].split(",")),
    )


_FIELDS = ("Hacks", "Task", "Caught as", "By", "Without", "Device")
