"""Measurements that ship with the kernels: records/DEVICE/TASK.jsonl in each package of kernels, an object a line.

Read here: `kernel`, `source` (the kernel's hash; a changed kernel has no records), `mode`, `workload`, `tokens`, and
`ratio`, the baseline's time over the kernel's as [value, low, high] with a 95 % interval.
"""

from __future__ import annotations

import functools
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fk_plugin import registry
from fk_plugin.kernel import Kernel

log = logging.getLogger("fk_plugin")

# A loss below this is none: the step times of an engine vary by more, and the instrument itself by 0.4 %.
_SLOWER = 0.99


def folder_name(device: str) -> str:
    """ "NVIDIA H200" -> "nvidia-h200"."""
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")


def of(kernel: Kernel, device: str) -> list[dict[str, Any]]:
    """The records of exactly this kernel on the device of that name, as torch.cuda.get_device_name() gives it."""
    files = (p / "records" / folder_name(device) / f"{kernel.task}.jsonl" for p in registry.kernel_folders())
    rows = (row for file in files if file.is_file() for row in _rows(file))
    return [row for row in rows if row["kernel"] == kernel.name and row["source"] == kernel.source]


@functools.cache
def _rows(file: Path) -> tuple[dict[str, Any], ...]:
    return tuple(_parsed(file))


def _parsed(file: Path) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(file.read_text().splitlines(), 1):
        try:
            row = json.loads(line)
            low, high = row["ratio"][1:]
            complete = isinstance(row["tokens"], int) and low <= high and {"kernel", "source", "mode"} <= row.keys()
        except (ValueError, KeyError, TypeError):
            complete = False
        if complete:
            yield row
        else:
            log.warning("fk-plugin: %s, line %d is no record and is skipped", file, number)


def slower_when_compiled(kernel: Kernel, device: str) -> str | None:
    """Why a compiler's own code in the kernel's place is faster than the opaque operator, or None.

    One token bucket that loses is enough: the operator is in the graph for all of them, and what it runs instead of
    the kernel cannot be fused any more.
    """
    compiled = [row for row in of(kernel, device) if row["mode"] == "compile"]
    losing = [row for row in compiled if row["ratio"][2] < _SLOWER]
    if not losing:
        return None
    worst = min(losing, key=lambda row: row["ratio"][0])
    return (
        f"between compiled neighbours {kernel.task}={kernel.name} runs at {worst['ratio'][0]:.2f} of the speed of the "
        f"compiler's own code at {worst['tokens']} tokens ({worst['workload']}, measured on {device})"
    )
