"""Counters that graph replays move: one addition on the device beside each counted call (FK_DEVICE_COUNTERS=1).

A replayed CUDA graph runs no Python, so the counters of fk_plugin.proof stand still while the kernels run. These sit
in device memory; the addition is captured into the graph with the kernel it counts. They cost a launch per call, so
they are for a run that proves use, never for one that is timed.

The parent process asks for the values by creating `PID.flush` in the proof folder; a thread copies them into the
counter file and removes the request. It copies on request only, because a copy during a capture would break it.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from fk_plugin import proof

_SLOTS = 1024


class DeviceCounters:
    """The counters of one device in this process."""

    def __init__(self, device: Any, folder: Path, pid: int) -> None:
        import torch

        self._torch = torch
        self._device = torch.device(device)
        with torch.inference_mode(False):  # made in inference mode, it could not be added to outside it
            self._values = torch.zeros(_SLOTS, dtype=torch.int64, device=self._device)
        self._slots: dict[str, Any] = {}
        self._written: dict[str, int] = {}
        self._request = folder / f"{pid}.flush"
        threading.Thread(target=self._serve, daemon=True, name="fk-device-counters").start()

    def add(self, key: str) -> None:
        """Add one to `key`, in the order of the current stream."""
        slot = self._slots.get(key)
        if slot is None:
            index = len(self._slots)
            if index == _SLOTS:
                raise RuntimeError(f"more than {_SLOTS} device counters; last one was {key!r}")
            slot = self._slots[key] = self._values[index : index + 1]
        slot.add_(1)

    def _serve(self) -> None:
        while True:
            time.sleep(0.05)
            if self._request.exists():
                self._flush()
                self._request.unlink()

    def _flush(self) -> None:
        torch = self._torch
        with torch.cuda.device(self._device):
            torch.cuda.synchronize()
            values = self._values.tolist()
        for index, key in enumerate(list(self._slots)):
            grown = values[index] - self._written.get(key, 0)
            if grown:
                proof.count(f"device|{key}", grown)
            self._written[key] = values[index]
