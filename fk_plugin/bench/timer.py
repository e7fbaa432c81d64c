"""One timer interface. The clock functions are bound before any candidate is imported.

A timer takes one function and one list of value sets per sample, and returns the seconds per call together with the
results, which are judged later. Making inputs, copying, flushing and reading back stay outside the clock.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from fk_plugin.bench.tensors import Fenced

KEPT = 4


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

        It returns what the last calls produced, on a CPU of KEPT calls with their arguments.
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
        # Copies to fresh addresses before each call and drops results, as `sample` does: a call then meets code and
        # memory in the same state. The last few results stay, to be read.
        last: deque[Any] = deque(maxlen=KEPT)

        def go() -> list[Any]:
            for _ in range(repeats):
                for values in sets:
                    args = Fenced(values).args
                    last.append((fn(*args), args))
            return list(last)

        return go


def for_device(device: str, mode: str, *, cold: bool, poison: bool = True) -> Timer:
    """The timer of a device and mode: the CPU clock; CUDA graphs (also in mode compile) or eager calls."""
    if torch.device(device).type == "cpu":
        return CpuTimer()
    from fk_plugin.bench.cuda_timer import EagerTimer, GraphTimer  # loaded already, see worker

    return EagerTimer(cold=cold) if mode == "eager" else GraphTimer(cold=cold, poison=poison)
