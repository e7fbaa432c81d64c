"""What the device can do at most, measured on it: bytes per second moved, operations per second executed.

A time below max(bytes / bandwidth, flops / peak) cannot be one in which the work was done. The bandwidth is the best
that copies and reads reach at any size up to the workload's, caches included, so that a kernel whose data sits in a
cache is not accused; beyond the caches it is the memory's own.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

_MARGIN = 0.75  # the best of a few copies is not the best possible
_SIZES = {"cpu": (1 << 15, 1 << 18, 1 << 21, 1 << 24, 1 << 27), "cuda": (1 << 22, 1 << 25, 1 << 28, 1 << 31)}


@dataclass(frozen=True, kw_only=True)
class Ceilings:
    """`bandwidth`: (bytes in play, best bytes/s) by size; `peak`: operations/s (bfloat16 on CUDA, else float32)."""

    bandwidth: tuple[tuple[int, float], ...]
    peak: float

    def floor(self, moved: int, flops: int) -> float:
        """Seconds under which moving `moved` bytes and doing `flops` operations is not plausible."""
        fitting = [rate for size, rate in self.bandwidth if size * 4 >= moved] or [self.bandwidth[-1][1]]
        return _MARGIN * max(moved / max(fitting), flops / self.peak)


def measure(device: str) -> dict[str, Any]:
    """Measure the ceilings of `device`; JSON types, for `Ceilings(**)`."""
    kind = torch.device(device).type
    run = _cuda_best if kind == "cuda" else _cpu_best
    bandwidth = []
    for size in _SIZES[kind]:
        source = torch.ones(size // 2, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        words = source[: size // 2 // 8 * 8].view(torch.int64)
        copy = size // 2 * 2 / run(functools.partial(target.copy_, source))
        read = size // 2 / run(words.max)
        bandwidth.append((size, max(copy, read)))
        del source, target, words
    side, dtype = (8192, torch.bfloat16) if kind == "cuda" else (1024, torch.float32)
    a = torch.randn(side, side, device=device).to(dtype)
    return {"bandwidth": bandwidth, "peak": 2 * side**3 / run(lambda: a @ a)}


def from_reply(reply: dict[str, Any]) -> Ceilings:
    """The ceilings in a child's answer."""
    return Ceilings(bandwidth=tuple((int(s), float(r)) for s, r in reply["bandwidth"]), peak=float(reply["peak"]))


def _cpu_best(fn: Callable[[], Any]) -> float:
    best, spent = float("inf"), 0.0
    fn()
    while spent < 0.03:
        start = time.perf_counter()
        for _ in range(4):
            fn()
        took = time.perf_counter() - start
        best, spent = min(best, took / 4), spent + took
    return best


def _cuda_best(fn: Callable[[], Any]) -> float:
    best = float("inf")
    for _ in range(12):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(400_000)
        start.record()
        for _ in range(4):
            fn()
        end.record()
        end.synchronize()
        best = min(best, start.elapsed_time(end) / 4e3)
    return best
