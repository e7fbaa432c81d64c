"""Timed calls in the child: order and values come from the parent, results are kept until it says which it wants."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch

from fk_plugin.bench import calls, region
from fk_plugin.bench.compare import equal_bits
from fk_plugin.bench.contents import build, unpack
from fk_plugin.bench.tensors import tensors_in, write
from fk_plugin.bench.timer import Timer, for_device
from fk_plugin.task import Workload

if TYPE_CHECKING:
    from fk_plugin.bench.worker import Worker

RENEW = "renew"  # in a schedule: see timer.Timer.renew
_SETTLE_S = 0.02  # late work that has not shown by then is longer than what it could hide in a call


class Bench:
    """Holds the timer of the current workload and the results of its timed calls."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._key: tuple[Any, ...] = ()
        self._timer: Timer | None = None
        self._fns: dict[str, Callable[..., Any]] = {}
        self._kept: list[list[torch.Tensor]] = []
        self._go: Callable[[], list[Any]] | None = None
        self._gone: list[Any] = []
        self._mode = ""

    def _set_up(self, workload: dict[str, Any], mode: str, cold: bool) -> tuple[Workload, Timer]:
        unpacked = unpack(workload)
        key = (unpacked.name, str(workload), mode, cold)
        if key != self._key or self._timer is None:
            self._timer, self._key = None, key  # its buffers go before the next one's come
            self._timer = self._new_timer(mode, cold)
            self._fns = {side: self._function(side, fn, unpacked, mode) for side, fn in self._worker.fns.items()}
        return unpacked, self._timer

    def _new_timer(self, mode: str, cold: bool) -> Timer:
        return for_device(self._worker.device, mode, cold=cold, poison=self._worker.checks.on("replay"))

    def _function(self, side: str, fn: Callable[..., Any], workload: Workload, mode: str) -> Callable[..., Any]:
        if mode != "compile":
            return fn
        worker = self._worker
        if side == "c":
            return region.compiled(worker.task, fn, workload, worker.device, opaque=True)
        assert worker.task.region is not None  # the session checked it
        native = worker.task.region.native or fn
        return region.compiled(worker.task, native, workload, worker.device, opaque=False)

    def run(
        self, workload: dict[str, Any], mode: str, cold: bool, schedule: list[list[Any]], keep: bool = True
    ) -> dict[str, Any]:
        """Run [side, recipes] after [side, recipes]; returns the seconds per call of each, RENEW left out.

        `late` lists kept calls whose results changed after the clock had stopped, `reused` those whose results share
        memory with an earlier call's, `types` the types of those that are no plain tensors. `keep` holds the
        candidate's results for `deliver`.
        """
        unpacked, timer = self._set_up(workload, mode, cold)
        self._kept, seconds = [], []
        copies: list[list[torch.Tensor]] = []
        kinds: set[str] = set()
        for side, recipes in schedule:
            if side == RENEW:
                timer.renew()
                continue
            if not self._worker.checks.on("fresh_timed"):
                first = {s: r[0] for s, r in reversed(schedule) if s != RENEW}
                recipes = [first.get("c", recipes[0])] * len(recipes)
            sets = [build(self._worker.task, unpacked, self._worker.device, r) for r in recipes]
            barrier()
            sample = timer.sample(side, self._fns[side], sets)
            seconds.append(sample.seconds)
            if keep:  # for both sides, so that whatever is timed next finds the process in the same state
                outputs = [self._outputs(args, result, mode) for args, result in sample.calls]
                cloned = [[t.clone() for t in ts] for ts in outputs]
                found = {calls.type_name(t) for _, result in sample.calls for t in tensors_in(result)}
                if side == "c":
                    copies, self._kept, kinds = copies + cloned, self._kept + outputs, kinds | found
                del outputs, cloned
            del sample
        return {"seconds_per_call": seconds, "types": sorted(kinds - {""}), **self._afterwards(copies)}

    def _outputs(self, args: tuple[Any, ...], result: Any, mode: str) -> list[torch.Tensor]:
        written = [] if mode == "compile" else self._worker.signature.written_tensors(args)
        return [torch.Tensor.as_subclass(t, torch.Tensor) for t in (*tensors_in(result), *written)]

    def _afterwards(self, copies: list[list[torch.Tensor]]) -> dict[str, Any]:
        if not copies:
            return {"late": [], "reused": []}
        time.sleep(_SETTLE_S)
        seen: set[int] = set()
        reused = []
        for number, tensors in enumerate(self._kept):
            addresses = {t.data_ptr() for t in tensors if t.numel()}
            if addresses & seen:
                reused.append(number)
            seen |= addresses
        late = [
            number
            for number, (now, then) in enumerate(zip(self._kept, copies, strict=True))
            if not all(equal_bits(a, b) for a, b in zip(now, then, strict=True))
        ]
        return {"late": late, "reused": reused}

    def deliver(self, picks: list[int]) -> dict[str, Any]:
        """Write the results of the picked kept calls to files."""
        folder = self._worker.folder
        return {
            "outputs": {
                str(n): [write(t, folder / f"t{n}-{i}.bin") for i, t in enumerate(self._kept[n])] for n in picks
            }
        }

    def prepare(
        self, workload: dict[str, Any], mode: str, cold: bool, side: str, recipes: list[dict[str, Any]], repeats: int
    ) -> dict[str, Any]:
        """Make len(recipes) * repeats calls ready for `go`; on a CPU no code of the candidate's runs meanwhile.

        `side` "" calls nothing: it shows what everything but the calls costs.
        """
        self._kept, self._go, self._gone = [], None, []
        unpacked, _ = self._set_up(workload, mode, cold)
        self._mode = mode
        sets = [build(self._worker.task, unpacked, self._worker.device, r) for r in recipes]
        fn = self._fns[side] if side else _nothing
        self._timer = None
        self._timer = self._new_timer(mode, cold)
        self._go = self._timer.ready(fn, sets, repeats)
        return {"calls": len(sets) * repeats}

    def warm(
        self, workload: dict[str, Any], mode: str, cold: bool, side: str, recipes: list[dict[str, Any]]
    ) -> dict[str, Any]:
        """A few calls before `prepare`, in a request of their own: they must not see what will be asked then."""
        self._kept, self._go, self._gone = [], None, []
        unpacked, timer = self._set_up(workload, mode, cold)
        sets = [build(self._worker.task, unpacked, self._worker.device, r) for r in recipes]
        timer.ready(self._fns[side], sets, 2)()
        return {}

    def deliver_gone(self, pick: int) -> dict[str, Any]:
        """Write what the call number `pick` of the last KEPT of `go` produced; on a CPU, where they are kept."""
        result, args = self._gone[pick]
        outputs = self._outputs(args, result, self._mode)
        return {"outputs": [write(t, self._worker.folder / f"g{i}.bin") for i, t in enumerate(outputs)]}

    def go(self) -> dict[str, Any]:
        """Run what is ready once; the parent's clock is running."""
        if self._go is not None:
            self._gone = self._go()  # freeing its inputs and results takes time that is not the kernel's
        return {}

    def touch(self) -> dict[str, Any]:
        """Read one byte of every page of what `go` produced; the parent's clock is running.

        Memory can be filled when somebody looks (userfaultfd, a handler of SIGSEGV), which is after a call's time.
        """
        page = os.sysconf("SC_PAGE_SIZE")
        total = 0
        for tensor in {t.data_ptr(): t for t in tensors_in(self._gone) if t.numel()}.values():
            raw = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
            total += int(raw[::page].sum())
        return {"sum": total}


def _nothing(*_: Any) -> None:
    pass


def join_ranks(rank: int, world: int, store: str, device: str) -> None:
    """Become rank `rank` of `world`; NCCL on CUDA (one GPU per rank), gloo on CPU."""
    cuda = torch.device(device).type == "cuda"
    if cuda:
        torch.cuda.set_device(rank)
    torch.distributed.init_process_group(
        "nccl" if cuda else "gloo", init_method=f"file://{store}", rank=rank, world_size=world,
        timeout=timedelta(seconds=120),
    )  # fmt: skip


def barrier() -> None:
    """Wait for the other ranks, if there are any, and for this rank's device."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        if torch.distributed.get_backend() == "nccl":
            torch.distributed.barrier(device_ids=[torch.cuda.current_device()])
            torch.cuda.synchronize()
        else:
            torch.distributed.barrier()
