"""Timing on CUDA: several calls in one graph between two events, or eager calls under the host's clock."""

from __future__ import annotations

import ctypes
import functools
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fk_plugin.bench.status import Rejected, Status
from fk_plugin.bench.tensors import Fenced, map_tensors, poison_, tensors_in
from fk_plugin.bench.timer import Sample, uncollected

_record = torch.cuda.Event.record
_elapsed = torch.cuda.Event.elapsed_time
_wait = torch.cuda.Event.synchronize
_synchronize = torch.cuda.synchronize
_sleep = torch.cuda._sleep
# Long enough for the host to queue a flush, two events and a graph launch, so that the device never waits for it.
_HEAD_START_CYCLES = 400_000
_SHIFT_BYTES = 34 << 10


@functools.cache
def runtime_library() -> ctypes.CDLL:
    """The CUDA runtime that torch has loaded."""
    mapped = Path("/proc/self/maps").read_text().split()
    found = next((word for word in mapped if "/libcudart" in word), None)
    if found is None:
        raise RuntimeError("libcudart is not loaded; is this a CUDA build of torch?")
    return ctypes.CDLL(found)


def persisting_l2() -> int:
    """Bytes of L2 set aside for persisting accesses (cudaLimitPersistingL2CacheSize)."""
    _synchronize()
    limit = ctypes.c_size_t()
    if runtime_library().cudaDeviceGetLimit(ctypes.byref(limit), 0x06) != 0:
        raise RuntimeError("cudaDeviceGetLimit(cudaLimitPersistingL2CacheSize) failed")
    return int(limit.value)


class Flush:
    """Evicts the L2 cache by reading three times its size.

    Reading, not writing: a cache full of written lines is written back while the kernel runs, which costs a copy of
    256 MiB 5 %.
    """

    def __init__(self) -> None:
        size = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
        self._buffer = torch.zeros(3 * size // 8, dtype=torch.int64, device="cuda")
        self._sink = torch.zeros((), dtype=torch.int64, device="cuda")
        self._runtime = runtime_library()

    def __call__(self) -> None:
        # Lines that an access policy made persistent would survive the reading.
        if self._runtime.cudaCtxResetPersistingL2Cache() != 0:
            raise RuntimeError("cudaCtxResetPersistingL2Cache failed")
        torch.sum(self._buffer, dim=0, out=self._sink)


class _Graph:
    """One captured graph: a call per argument set, its static results, and the sets it reads."""

    def __init__(self, fn: Callable[..., Any], inputs: list[Fenced], values: list[tuple[Any, ...]]) -> None:
        self._graph = torch.cuda.CUDAGraph()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):  # lazy first calls, autotuning and library handles belong outside the capture
                fn(*inputs[0].args)
        torch.cuda.current_stream().wait_stream(side)
        _synchronize()
        for fenced, value in zip(inputs, values, strict=True):
            fenced.load(value)
        try:
            # NCCL's own thread polls events meanwhile, which the stricter default would forbid.
            ranks = torch.distributed.is_available() and torch.distributed.is_initialized()
            with torch.cuda.graph(self._graph, capture_error_mode="thread_local" if ranks else "global"):
                self.results = [fn(*fenced.args) for fenced in inputs]
        except Exception as error:  # boundary: whatever a candidate does that a capture forbids
            line = (str(error).strip().splitlines() or [""])[0][:200]
            raise Rejected(Status.CRASHED, f"it cannot be captured in a CUDA graph: {line}") from error
        own = {t.untyped_storage().data_ptr() for f in inputs for t in tensors_in(f.args)}
        self.fresh = [t for t in tensors_in(self.results) if t.untyped_storage().data_ptr() not in own]

    def replay(self) -> None:
        """Launch it."""
        self._graph.replay()


class GraphTimer:
    """CUDA graph mode. Both sides read the same static buffers; every replay finds other values in them.

    Cold: the cache is flushed after the values are copied in, and each call of the graph reads a set of its own.
    Warm: every call of the graph reads the first set, and the graph ran once before the clock starts.
    """

    def __init__(self, *, cold: bool, poison: bool = True) -> None:
        self._cold, self._poison = cold, poison
        self._flush = Flush()
        self._inputs: list[Fenced] = []
        self._graphs: dict[str, _Graph] = {}
        self._shift: list[torch.Tensor] = []

    def renew(self) -> None:
        """See Timer: two captures of one kernel differ by up to 1 % with where their buffers lie."""
        self._graphs, self._inputs, self._shift = {}, [], []
        torch.cuda.empty_cache()  # a cached block would be handed out again at the same address
        sizes = (random.randrange(1, 64) * _SHIFT_BYTES for _ in range(3))
        self._shift = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in sizes]

    def _graph(self, side: str, fn: Callable[..., Any], sets: list[tuple[Any, ...]]) -> _Graph:
        if not self._inputs:
            self._inputs = [Fenced(values) for values in sets]
        if side not in self._graphs:
            inputs = self._inputs if self._cold else [self._inputs[0]] * len(self._inputs)
            values = sets if self._cold else [sets[0]] * len(sets)
            self._graphs[side] = _Graph(fn, inputs, values)
        return self._graphs[side]

    def sample(self, side: str, fn: Callable[..., Any], sets: list[tuple[Any, ...]]) -> Sample:
        """See Timer."""
        graph = self._graph(side, fn, sets)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for tensor in graph.fresh if self._poison else ():
            poison_(tensor)  # what a replay does not write shows
        for fenced, values in zip(self._inputs, sets, strict=True):
            fenced.load(values)
        if self._cold:
            self._flush()
        else:
            graph.replay()
        _synchronize()
        _sleep(_HEAD_START_CYCLES)
        _record(start)
        graph.replay()
        _record(end)
        _wait(end)
        _synchronize()
        seconds = _elapsed(start, end) / 1e3 / len(sets)
        count = len(sets) if self._cold else 1
        pairs = zip(self._inputs[:count], graph.results[:count], strict=True)
        return Sample(seconds=seconds, calls=[(_copy(f.args), _copy(result)) for f, result in pairs])

    def ready(self, fn: Callable[..., Any], sets: list[tuple[Any, ...]], repeats: int) -> Callable[[], list[Any]]:
        """See Timer."""
        graph = self._graph("ready", fn, sets)
        graph.replay()
        _synchronize()

        def go() -> list[Any]:
            for _ in range(repeats):
                graph.replay()
            _synchronize()
            return graph.results

        return go


class EagerTimer:
    """Eager mode: the host's clock from the first call to the end of all work on every stream of the device.

    Launch overhead is part of what eager execution costs, and a device-wide wait charges work on any stream.
    """

    def __init__(self, *, cold: bool, now: Callable[[], int] = time.perf_counter_ns) -> None:
        self._cold, self._now = cold, now
        self._flush = Flush()
        self._like: dict[str, list[torch.Tensor]] = {}
        self._before: tuple[Any, ...] | None = None

    def renew(self) -> None:
        """See Timer; each sample has buffers of its own."""

    def _make_room(self, side: str, fn: Callable[..., Any], sets: list[tuple[Any, ...]]) -> None:
        """Have the allocator hold the memory that the timed calls will take.

        Results of timed calls are kept, so the calls after them would otherwise pay for cudaMalloc.
        """
        if side not in self._like:
            results = tensors_in(fn(*Fenced(sets[0]).args))
            self._like[side] = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta") for t in results]
        room = [torch.empty_like(t, device="cuda") for _ in sets for t in self._like[side]]
        del room

    def sample(self, side: str, fn: Callable[..., Any], sets: list[tuple[Any, ...]]) -> Sample:
        """See Timer."""
        now = self._now
        inputs = [Fenced(values).args for values in sets]
        self._make_room(side, fn, sets)
        # What ran since the last sample has left the CPU's caches to itself; a call on the last sample's values, which
        # nothing needs any more, brings them back for either side.
        fn(*(self._before or sets[0]))
        if self._cold:
            self._flush()
        _synchronize()
        with uncollected():
            start = now()
            results = [fn(*args) for args in inputs]
            _synchronize()
            seconds = (now() - start) / 1e9 / len(sets)
        self._before = sets[0]
        return Sample(seconds=seconds, calls=list(zip(inputs, results, strict=True)))

    def ready(self, fn: Callable[..., Any], sets: list[tuple[Any, ...]], repeats: int) -> Callable[[], list[Any]]:
        """See Timer."""
        inputs = [Fenced(values).args for values in sets]
        _synchronize()

        def go() -> list[Any]:
            results: list[Any] = []
            for _ in range(repeats):
                results = [fn(*args) for args in inputs]
            _synchronize()
            return results

        return go


def _copy(value: Any) -> Any:
    return map_tensors(value, lambda t: t.clone() if type(t) is torch.Tensor else t)
