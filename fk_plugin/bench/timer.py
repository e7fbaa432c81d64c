"""One timer interface. The clock functions are bound before any candidate is imported.

A timer takes one function and one list of value sets per sample, and returns the seconds per call together with the
results, which are judged later. Making inputs, copying, flushing and reading back stay outside the clock.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from fk_plugin.bench.tensors import Fenced


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Seconds per call, and for each call its arguments and its result."""

    seconds: float
    calls: list[tuple[tuple[Any, ...], Any]]


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """No garbage collection inside: it would fall into whichever side happens to run."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


class Timer(Protocol):
    """What the sandbox asks of a clock."""

    def renew(self) -> None:
        """Give up what lasts over samples (graphs, buffers), so that the next ones meet other addresses."""

    def sample(self, side: str, fn: Callable[..., Any], sets: list[tuple[Any, ...]]) -> Sample:
        """Time `fn` on each argument set, one after the other."""

    def ready(self, fn: Callable[..., Any], sets: list[tuple[Any, ...]], repeats: int) -> Callable[[], list[Any]]:
        """Prepare `len(sets) * repeats` calls; the returned function runs them and returns when all work is done.

        It returns their results and the arguments of the last call, which hold what was written in place.
        """


class CpuTimer:
    """time.perf_counter_ns around each call. Tensors of a call are copied to addresses of their own just before."""

    def __init__(self, now: Callable[[], int] = time.perf_counter_ns) -> None:
        self._now = now

    def renew(self) -> None:
        """See Timer; each sample has buffers of its own."""

    def sample(self, side: str, fn: Callable[..., Any], sets: list[tuple[Any, ...]]) -> Sample:
        """See Timer."""
        now = self._now
        total, calls = 0, []
        with uncollected():
            for values in sets:
                args = Fenced(values).args
                start = now()
                result = fn(*args)
                total += now() - start
                calls.append((args, result))
        return Sample(seconds=total / 1e9 / len(sets), calls=calls)

    def ready(self, fn: Callable[..., Any], sets: list[tuple[Any, ...]], repeats: int) -> Callable[[], list[Any]]:
        """See Timer."""
        buffer = Fenced(sets[0])

        def go() -> list[Any]:
            results = []  # kept, as those of timed calls are, so that each call meets memory in the same state
            for _ in range(repeats):
                for values in sets:
                    buffer.load(values)  # just before the call, as in `sample`
                    results.append(fn(*buffer.args))
            return [*results, buffer.args]

        return go


def for_device(device: str, mode: str, *, cold: bool, poison: bool = True) -> Timer:
    """The timer of a device and mode: the CPU clock; CUDA graphs (also in mode compile) or eager calls."""
    if torch.device(device).type == "cpu":
        return CpuTimer()
    from fk_plugin.bench.cuda_timer import EagerTimer, GraphTimer  # loaded already, see timing

    return EagerTimer(cold=cold) if mode == "eager" else GraphTimer(cold=cold, poison=poison)
