"""The child's end: load the candidate, call it on what the parent names, time it, hand over raw results.

Nothing here decides. The parent regenerates the inputs, computes the oracle and judges; it also re-times in another
child by its own clock. Replies are JSON lines; tensors are plain bytes in files.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import inspect
import json
import os
import resource
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

with contextlib.suppress(ImportError):
    import tqdm  # type: ignore[import-untyped]  # noqa: F401  see baselines.compiled
import torch._dynamo  # it replaces torch.manual_seed when imported, which must not look like a candidate's doing

from fk_plugin import dispatch

# cuda_timer here and not on first use: it binds the clocks, before any candidate.
from fk_plugin.bench import audit, baselines, calls, cuda_timer, imports, judge, locate, schema, timing
from fk_plugin.bench.checks import without
from fk_plugin.bench.contents import unpack
from fk_plugin.bench.status import Rejected, Status
from fk_plugin.bench.tensors import write
from fk_plugin.errors import UsageError
from fk_plugin.kernel import Kernel

_PRELOADED: dict[tuple[str, str], Callable[..., Any]] = {}


def preload(task: str, names: list[str], device: str) -> dict[str, str]:
    """In the zygote, for CPU only: load baselines once for all children. Returns why each cannot run ("" if it can)."""
    found = locate.task(task)
    reasons = {}
    for name in names:
        try:
            _PRELOADED[task, name] = baselines.load(found, name, device)
            reasons[name] = ""
        except RuntimeError as error:
            reasons[name] = str(error)
    return reasons


def serve(requests: int, replies: int, start: dict[str, Any]) -> int:
    """Answer requests until the channel closes; the exit status."""
    _limit_memory(int(start["memory"]))
    _keep_freed_memory()
    worker = Worker(Path(start["folder"]))
    dumps, write = json.dumps, os.write
    with os.fdopen(requests, "rb") as lines:
        for line in lines:
            request = json.loads(line)
            nonce = request.pop("nonce")
            reply = worker.answer(request)
            payload = memoryview(dumps({**reply, "nonce": nonce}).encode() + b"\n")
            while payload:
                payload = payload[write(replies, payload) :]
    return 0


def _limit_memory(extra: int) -> None:
    """Address space beyond today's; CUDA reserves far more than it uses, so there the parent watches residency."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if not torch.cuda.is_available():
        size = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (size + extra, size + extra))


def _keep_freed_memory() -> None:
    """Have glibc reuse freed memory instead of returning it to the system, as the allocators of engines do.

    Otherwise a call pays for page faults or not by how the heap of its process happens to lie.
    """
    m_trim_threshold, m_mmap_threshold = -1, -3
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # other C libraries have no such switch
        libc.mallopt(m_mmap_threshold, 32 << 20)  # the largest it takes
        libc.mallopt(m_trim_threshold, (1 << 31) - 1)


class Worker:
    """One candidate (or none: a clean process for baselines) of one task."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kernel: Kernel | None = None
        self.fns: dict[str, Callable[..., Any]] = {}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The reply to one request; a failure is a reply with its status and one sentence."""
        op = request.pop("op")
        try:
            result: dict[str, Any] = getattr(self, f"op_{op}")(**request)
            return result
        except Rejected as rejected:
            return {"failed": rejected.verdict.status.value, "reason": rejected.verdict.reason}
        except BaseException as error:  # noqa: BLE001  # boundary: a candidate may raise anything, even SystemExit
            status, reason = explain(error, loading=op in ("load", "candidate"))
            return {"failed": status.value, "reason": reason}

    def op_load(
        self, task: str, device: str, sides: dict[str, str], disabled: list[str], ranks: Any = None
    ) -> dict[str, Any]:
        """Load baselines by side name, then trap the reference."""
        self.spec, self.task, self.device, self.checks = task, locate.task(task), device, without(disabled)
        if ranks is not None:
            timing.join_ranks(**ranks)
        if torch.device(device).type == "cuda":
            torch.cuda.init()  # what it replaces, and the threads it starts, are not the candidate's doing
            torch.cuda.synchronize()
        self.signature = schema.main(self.task)
        for side, name in sides.items():
            self.fns[side] = _PRELOADED.get((task, name)) or baselines.load(self.task, name, device)
        self.trap = calls.Trap(self.task, on=self.checks.on("fallback"))
        self.caller = calls.Caller(self)
        self.timer = timing.Bench(self)
        return {}

    def op_candidate(self, kernel: str) -> dict[str, Any]:
        """Load the candidate as side "c", after noting what this process is like without it."""
        for module in imports.of_engines(kernel):  # they replace functions of torch, which is not the candidate's doing
            importlib.import_module(module)
        self.before = audit.functions()
        self.settings = audit.settings()
        self.idle = audit.workers()
        self.l2_before = self._l2()
        return self._load_kernel(kernel)

    def op_baseline(self, name: str) -> dict[str, Any]:
        """Load one baseline as the side of its own name; the reason if it cannot run here."""
        try:
            self.fns[name] = _PRELOADED.get((self.spec, name)) or baselines.load(self.task, name, self.device)
        except RuntimeError as error:
            return {"reason": str(error)}
        return {"reason": ""}

    def _load_kernel(self, spec: str) -> dict[str, Any]:
        try:
            found = locate.kernel(self.task, spec)
        except UsageError as error:
            raise Rejected(Status.LOAD_ERROR, str(error)) from error
        reason = dispatch.unavailable(found)
        if reason is None and found.requires.device not in ("any", torch.device(self.device).type):
            reason = f"it is for {found.requires.device}"
        if reason is not None:
            raise Rejected(Status.DECLINED, reason)
        if found.prepare is not None:
            found.prepare()
        self.kernel = found
        self.fns["c"] = found.fn
        parameters = inspect.signature(found.fn).parameters
        return {"name": found.name, "source": found.source, "takes_out": "out" in parameters,
                "wrong_on_purpose": found.wrong_on_purpose}  # fmt: skip

    def refusal(self, args: tuple[Any, ...]) -> str | None:
        """Why the candidate does not take these arguments, or None."""
        assert self.kernel is not None
        dtypes = {str(t.dtype).removeprefix("torch.") for t in calls.first_tensor(args)}
        need = self.kernel.requires
        if not dtypes <= set(need.dtypes):
            return f"dtype {', '.join(dtypes)}"
        if need.min_sm is not None and torch.cuda.get_device_capability() < need.min_sm:
            return f"compute capability below {need.min_sm[0]}.{need.min_sm[1]}"
        try:
            inspect.signature(self.kernel.fn).bind(*args)
        except TypeError as error:
            wanted, came = ", ".join(self.signature.names), inspect.signature(self.kernel.fn)
            raise Rejected(Status.LOAD_ERROR, f"wrong signature: expected ({wanted}), got {came}: {error}") from error
        return self.kernel.guard(*args) if self.kernel.guard is not None else None

    def op_call(self, workload: dict[str, Any], side: str = "c", **how: Any) -> dict[str, Any]:
        """One judged call; see calls.Caller.call."""
        return self.caller.call(self.fns[side], unpack(workload), judged=side == "c", **how)

    def op_expect(self, workload: dict[str, Any], recipe: dict[str, Any], tag: str) -> dict[str, Any]:
        """In a clean process: what the call must produce, for tasks whose reference needs every rank."""
        found = judge.expect(self.task, unpack(workload), self.device, recipe)
        stored = {
            kind: [write(t, self.folder / f"{tag}-{kind}-{n}.bin") for n, t in enumerate(getattr(found, kind))]
            for kind in ("reference", "oracle")
        }
        return {**stored, "returned": found.returned, "form": found.form, "computed": sorted(found.computed)}

    def op_time(self, **how: Any) -> dict[str, Any]:
        """Timed calls; see timing.Bench.run."""
        return self.timer.run(**how)

    def op_deliver(self, **how: Any) -> dict[str, Any]:
        """Results of timed calls that the parent picked afterwards; see timing.Bench.deliver."""
        return self.timer.deliver(**how)

    def op_warm(self, **how: Any) -> dict[str, Any]:
        """Calls before those of `go`; see timing.Bench.warm."""
        return self.timer.warm(**how)

    def op_gone(self, pick: int) -> dict[str, Any]:
        """One of the last results of `go`; see timing.Bench.deliver_gone."""
        return self.timer.deliver_gone(pick)

    def op_prepare(self, **how: Any) -> dict[str, Any]:
        """Inputs for `go`; see timing.Bench.prepare."""
        return self.timer.prepare(**how)

    def op_go(self) -> dict[str, Any]:
        """Run what `prepare` made ready, for the parent's clock."""
        return self.timer.go()

    def op_touch(self) -> dict[str, Any]:
        """Read what `go` produced, for the parent's clock."""
        return self.timer.touch()

    def op_idle(self) -> dict[str, Any]:
        """Nothing: what the channel itself costs."""
        return {}

    def op_ceilings(self, **how: Any) -> dict[str, Any]:
        """Measured bandwidth and peak of the device; see ceilings.measure."""
        from fk_plugin.bench import ceilings

        return ceilings.measure(self.device, **how)

    def op_audit(self) -> dict[str, Any]:
        """What changed in this process since before the candidate was loaded."""
        return {
            "replaced": audit.replaced(self.before),
            "left_on": audit.left_on(self.settings),
            "left": audit.left(self.idle),
            "l2": [self.l2_before, self._l2()],
        }

    def _l2(self) -> int:
        # The driver itself sets some aside: 11,796,480 bytes on an H200 with driver 580.
        return cuda_timer.persisting_l2() if torch.device(self.device).type == "cuda" else 0


def explain(error: BaseException, *, loading: bool) -> tuple[Status, str]:
    """Status and sentence for what a candidate raised."""
    text = (str(error).strip().splitlines() or [""])[0][:300]
    sentence = (f"{type(error).__name__}: {text}" if text else type(error).__name__) + _where(error)
    out_of_memory = isinstance(error, (MemoryError, torch.OutOfMemoryError)) or any(
        words in str(error) for words in ("can't allocate memory", "out of memory", "Cannot allocate memory")
    )
    if out_of_memory:
        return Status.OUT_OF_MEMORY, f"it asked for more memory than it may use: {sentence}"
    if loading:
        return Status.LOAD_ERROR, f"it cannot be loaded: {sentence}"
    return Status.CRASHED, f"it raised {sentence}"


def _where(error: BaseException) -> str:
    """The innermost line outside this package, as " (FILE:LINE)"; the user's own in the common case."""
    own = str(Path(__file__).resolve().parent.parent)
    # Without reading any source, for which there may be no memory left.
    lines = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    outside = [(file, line) for file, line in lines if not file.startswith((own, "<")) and "importlib" not in file]
    theirs = [at for at in outside if f"{os.sep}site-packages{os.sep}" not in at[0]]
    return f" ({Path(theirs[-1][0]).name}:{theirs[-1][1]})" if theirs else ""
