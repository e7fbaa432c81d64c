"""Per-process counters that survive SIGKILL and can be read from outside, and a log of events beside them.

A counter file is a shared memory map: the kernel keeps its pages when the process dies, however it dies. Layout:
a 16-byte header (magic, number of entries used), then fixed entries of 192 bytes: a 64-bit count and a UTF-8 key.
An entry's key is written before the header admits it, so a reader never sees half a key.
Engines run a model's forward in one thread; counting from several threads at once may lose increments.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_MAGIC = b"fkcount1"
_HEADER = 16
_ENTRY = 192
_KEY_BYTES = _ENTRY - 9  # the count before, one NUL behind
_ENTRIES = 4096


class Counters:
    """Counts by key, in memory or in the file `folder/PID.counters`."""

    def __init__(self, folder: Path | None) -> None:
        size = _HEADER + _ENTRY * _ENTRIES
        if folder is None:
            self._map = mmap.mmap(-1, size)
            self._map[:8] = _MAGIC
        else:
            folder.mkdir(parents=True, exist_ok=True)
            unfinished = folder / f"{os.getpid()}.counters.new"
            with unfinished.open("w+b") as file:
                file.write(_MAGIC)
                file.truncate(size)
                file.flush()
                self._map = mmap.mmap(file.fileno(), size)
            # Under its own name only now: a reader never meets a file without its header.
            unfinished.replace(folder / f"{os.getpid()}.counters")
        self._words = memoryview(self._map).cast("Q")
        self._index: dict[str, int] = {}
        self.pid = os.getpid()

    def add(self, key: str, amount: int = 1) -> None:
        """Add to the count of `key` (at most 183 bytes of UTF-8, longer ones are cut; 4,096 keys a process)."""
        at = self._index.get(key)
        if at is None:
            at = self._new(key)
        self._words[at] += amount

    def _new(self, key: str) -> int:
        used = len(self._index)
        if used == _ENTRIES:
            raise RuntimeError(f"more than {_ENTRIES} counter keys in one process; last one was {key!r}")
        offset = _HEADER + used * _ENTRY
        encoded = key.encode()[:_KEY_BYTES]
        self._map[offset + 8 : offset + 8 + len(encoded)] = encoded
        self._words[1] = used + 1
        self._index[key] = offset // 8
        return offset // 8

    def snapshot(self) -> dict[str, int]:
        """Every key and its count now."""
        return {key: self._words[at] for key, at in self._index.items()}


def read_file(path: Path) -> dict[str, int]:
    """The counts in a counter file, also while its process runs or after it was killed."""
    data = path.read_bytes()
    if data[:8] != _MAGIC:
        raise ValueError(f"{path} is no counter file: expected it to start with {_MAGIC!r}")
    (used,) = struct.unpack_from("<Q", data, 8)
    counts: dict[str, int] = {}
    for offset in range(_HEADER, _HEADER + used * _ENTRY, _ENTRY):
        (count,) = struct.unpack_from("<Q", data, offset)
        counts[data[offset + 8 : offset + _ENTRY].rstrip(b"\0").decode(errors="replace")] = count
    return counts


def read_folder(folder: Path) -> dict[int, dict[str, int]]:
    """The counts of every process that wrote into `folder`, by pid."""
    return {int(p.stem): read_file(p) for p in sorted(folder.glob("*.counters"))}


class Events:
    """One JSON object a line in `folder/PID.events.jsonl`; a line is handed to the system before write() returns."""

    def __init__(self, folder: Path | None) -> None:
        self._file = None
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = (folder / f"{os.getpid()}.events.jsonl").open("ab", buffering=0)

    def write(self, event: str, **fields: Any) -> None:
        """Append one event; the time (seconds since the epoch) and the pid are added."""
        if self._file is not None:
            row = {"event": event, "time": time.time(), "pid": os.getpid(), **fields}
            self._file.write(json.dumps(row, default=str).encode() + b"\n")


def read_events(folder: Path) -> Iterator[dict[str, Any]]:
    """The events of every process, file by file. A line cut short by a kill ends its file."""
    for path in sorted(folder.glob("*.events.jsonl")):
        for line in path.read_bytes().splitlines():
            try:
                yield json.loads(line)
            except json.JSONDecodeError:
                break
