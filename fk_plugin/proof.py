"""This process's counters and event log, and the marks that the four proofs of use are read from.

Counter keys, fields separated by "|":
    call|TASK|KERNEL|BUCKET             the kernel ran
    fall|TASK|FALLBACK|REASON|BUCKET    the named fallback ran instead, and why
    engine|TASK|SITE                    the engine's own code ran at a bindable site (FK_TRACE=1)
    forward|ROOT                        a forward of the model's root module started
    device|...                          the same, counted on the device (FK_DEVICE_COUNTERS=1)
BUCKET is the number of tokens rounded up to a power of two.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fk_plugin.counters import Counters, Events

if TYPE_CHECKING:
    from fk_plugin.device_counters import DeviceCounters


class _State:
    folder: Path | None = None
    counters = Counters(None)
    events = Events(None)
    device: DeviceCounters | None = None


def open_folder(folder: Path | None) -> None:
    """Start writing into `folder` (None: memory only). The same folder again changes nothing."""
    if folder == _State.folder:
        return
    _State.folder = folder
    _State.counters = Counters(folder)
    _State.events = Events(folder)


def folder() -> Path | None:
    """Where this process writes, None for memory only."""
    return _State.folder


def _after_fork() -> None:
    # Without this a forked worker would count into its parent's file, under its parent's pid.
    _State.counters = Counters(_State.folder)
    _State.events = Events(_State.folder)


os.register_at_fork(after_in_child=_after_fork)


def count(key: str, amount: int = 1) -> None:
    """Add to one of this process's counters."""
    _State.counters.add(key, amount)


def event(name: str, **fields: Any) -> None:
    """Append to this process's event log."""
    _State.events.write(name, **fields)


def start_device_counters(device: Any) -> None:
    """Begin counting on `device` (cuda) too. Once per process, before any graph is captured."""
    from fk_plugin.device_counters import DeviceCounters

    if _State.device is None:
        assert _State.folder is not None  # env.read() insists on it
        _State.device = DeviceCounters(device, _State.folder, os.getpid())


def count_on_device(key: str) -> None:
    """Add one to a device counter, if they are on."""
    if _State.device is not None:
        _State.device.add(key)


def snapshot() -> dict[str, int]:
    """This process's counts."""
    return _State.counters.snapshot()


def bucket(tokens: int) -> int:
    """`tokens` rounded up to a power of two; 0 stays 0."""
    return 1 << (tokens - 1).bit_length() if tokens > 0 else 0


@dataclass(kw_only=True)
class Usage:
    """What a set of counters says about one task. Buckets map token counts (rounded up) to calls."""

    calls: dict[str, int] = field(default_factory=dict)  # by kernel
    fallbacks: dict[tuple[str, str], int] = field(default_factory=dict)  # by (fallback, reason)
    buckets: dict[int, int] = field(default_factory=dict)  # calls of either kind

    @property
    def seen(self) -> int:
        """Calls of the operator, by kernel or fallback."""
        return sum(self.calls.values()) + sum(self.fallbacks.values())


def usage(counts: dict[str, int]) -> dict[str, Usage]:
    """Counters grouped by task."""
    result: dict[str, Usage] = {}
    for key, value in counts.items():
        kind, *rest = key.split("|")
        if kind not in ("call", "fall") or not value:
            continue
        of = result.setdefault(rest[0], Usage())
        size = int(rest[-1])
        of.buckets[size] = of.buckets.get(size, 0) + value
        if kind == "call":
            of.calls[rest[1]] = of.calls.get(rest[1], 0) + value
        else:
            name = (rest[1], rest[2])
            of.fallbacks[name] = of.fallbacks.get(name, 0) + value
    return result


def on_device(counts: dict[str, int]) -> dict[str, int]:
    """The counts that were kept on the device, under their plain keys."""
    return {key.removeprefix("device|"): n for key, n in counts.items() if key.startswith("device|")}


def engine_calls(counts: dict[str, int]) -> dict[str, dict[str, int]]:
    """Calls of the engine's own code by task and site, from a traced run."""
    result: dict[str, dict[str, int]] = {}
    for key, value in counts.items():
        kind, *rest = key.split("|")
        if kind == "engine" and value:
            result.setdefault(rest[0], {})[rest[1]] = value
    return result


def forwards(counts: dict[str, int]) -> int:
    """Forwards of the root module, warm-up included."""
    return sum(value for key, value in counts.items() if key.startswith("forward|"))
