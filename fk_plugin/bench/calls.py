"""Judged calls in the child: guarded buffers, poisoned memory, and what the call did besides its result."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from fk_plugin.bench import audit, baselines, compare, judge, schema
from fk_plugin.bench.contents import build
from fk_plugin.bench.status import Rejected, Status
from fk_plugin.bench.tensors import Fenced, copy_storages, describe, poison_, tensors_in, write
from fk_plugin.bench.watch import Watch
from fk_plugin.task import Task, Workload

if TYPE_CHECKING:
    from fk_plugin.bench.worker import Worker


class Trap:
    """Puts the task's reference out of the candidate's reach while the candidate runs.

    The code object is replaced and not the name, so a candidate that imported the function earlier meets it as well.
    """

    def __init__(self, task: Task, *, on: bool) -> None:
        self.reference = baselines.own_copy(task.reference)
        plain = (o.reference for o in task.overloads if isinstance(o.reference, types.FunctionType))
        self._functions = [fn for fn in plain if on and fn.__closure__ is None]
        self._codes = [fn.__code__ for fn in self._functions]

    def __enter__(self) -> None:
        for fn in self._functions:
            fn.__code__ = _called.__code__

    def __exit__(self, *_: object) -> None:
        for fn, code in zip(self._functions, self._codes, strict=True):
            fn.__code__ = code


def _called(*args: Any, **kwargs: Any) -> Any:
    # Runs with the reference's globals, so it must import what it raises.
    from fk_plugin.bench.calls import Called

    raise Called


class Called(BaseException):
    """The candidate called the task's reference. No Exception, so that `except Exception` cannot hide it."""


class Caller:
    """Runs one call at a time. Buffers stay for the next call, which may load other values into them."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._fenced: Fenced | None = None
        self._expected: list[torch.Tensor] = []

    def call(
        self,
        fn: Callable[..., Any],
        workload: Workload,
        recipe: dict[str, Any],
        judged: bool,
        poison: bool = False,
        reuse: bool = False,
        form: str = "main",
        tag: str = "r",
    ) -> dict[str, Any]:
        """Call `fn` on the recipe's values and store its results as files.

        `reuse`: load the values into the last call's buffers, so addresses and tensor objects stay. `form` "out":
        pass a poisoned `out`. Returns the results' descriptions, what was written where it should not be, and the
        computing operators seen.
        """
        worker = self._worker
        args = build(worker.task, workload, worker.device, recipe)
        outs = self._outs(args) if form == "out" else ()
        if reuse and self._fenced is not None:
            self._fenced.load((args, outs))
        else:
            self._fenced = Fenced((args, outs))
        fenced_args, fenced_outs = self._fenced.args
        declined = worker.refusal(fenced_args) if judged else None
        if declined is not None:
            return {"declined": declined}
        leak = self._leak(args)
        before = self._fenced.snapshot()
        threads = audit.workers()
        watch = Watch(poison=poison, fill=worker.checks.on("poison"))
        result = self._invoke(fn, fenced_args, fenced_outs, watch, judged)
        results = list(fenced_outs) if form == "out" else tensors_in(result)
        outputs = [*results, *(worker.signature.written_tensors(fenced_args))]
        return {
            **self._effects(before, fenced_args, fenced_outs, [] if form == "out" else results),
            "form": judge.form_of(result),
            "types": [type_name(t) for t in results],
            "computed": sorted(watch.computed),
            "left": audit.left(threads),
            "outputs": self._store(outputs, tag),
            **self._confess(leak, outputs),
        }

    def _outs(self, args: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
        shapes = self._worker.task.overloads[0].fake(*args)
        return tuple(poison_(torch.empty_like(t)) for t in tensors_in(shapes))

    def _trap(self, judged: bool) -> contextlib.AbstractContextManager[None]:
        return self._worker.trap if judged else contextlib.nullcontext()

    def _invoke(
        self, fn: Callable[..., Any], args: tuple[Any, ...], outs: tuple[Any, ...], watch: Watch, judged: bool
    ) -> Any:
        kwargs = {} if not outs else {"out": outs[0] if len(outs) == 1 else outs}
        try:
            # A dispatch mode keeps torch.compile from compiling, so only poisoned calls run under one.
            with watch if watch.poison else contextlib.nullcontext(), self._trap(judged):
                result = fn(*args, **kwargs)
            if torch.device(self._worker.device).type == "cuda":
                torch.cuda.synchronize()
        except Called:
            raise Rejected(Status.FALLBACK, "it called the task's reference") from None
        return result

    def _effects(
        self, before: list[torch.Tensor], args: tuple[Any, ...], outs: tuple[Any, ...], results: list[torch.Tensor]
    ) -> dict[str, Any]:
        assert self._fenced is not None
        signature = self._worker.signature
        names = [*signature.tensor_names(args), *("out" for _ in outs)]
        changes = self._fenced.changes(before, [*signature.written_tensors(args), *outs])
        memory = {t.untyped_storage().data_ptr(): n for t, n in zip(tensors_in((args, outs)), names, strict=True)}
        return {
            "guard_bytes": changes.guard_bytes,
            "mutated": sorted({n for s in changes.storages for n in self._fenced.owners(s, names)}),
            "aliases": [memory.get(t.untyped_storage().data_ptr(), "") if t.numel() else "" for t in results],
        }

    def _store(self, outputs: list[torch.Tensor], tag: str) -> list[dict[str, Any]]:
        folder = self._worker.folder
        plain = [torch.Tensor.as_subclass(t, torch.Tensor) for t in outputs]
        # A tensor of another device (meta, say) is described and not stored; the judge says what is wrong with it.
        kind = torch.device(self._worker.device).type
        return [
            write(t, folder / f"{tag}-{number}.bin") if t.device.type == kind else {"file": "", **describe(t)}
            for number, t in enumerate(plain)
        ]

    # What follows exists for tests alone: it puts back what the design keeps out of the candidate's process, to prove
    # that keeping it out is what defeats a cheat.

    def _leak(self, args: tuple[Any, ...]) -> list[torch.Tensor]:
        checks = self._worker.checks
        if checks.on("oracle_elsewhere") and checks.on("judge_elsewhere"):
            return []
        for _ in range(2):  # one copy freed, which the allocator hands out next, and one alive, which gc can find
            copies = copy_storages(args)
            result = self._worker.trap.reference(*copies)
            self._expected = schema.outputs(self._worker.task, copies, result)
        return self._expected

    def _confess(self, leak: list[torch.Tensor], outputs: list[torch.Tensor]) -> dict[str, Any]:
        reply: dict[str, Any] = {}
        if leak and not self._worker.checks.on("judge_elsewhere"):
            pairs = zip(outputs, leak, strict=True)
            reply["verdict"] = "; ".join(filter(None, (compare.verdict_of(got, want) for got, want in pairs)))
        if leak and not self._worker.checks.on("oracle_elsewhere"):
            reply["expected"] = self._store(leak, "expected")
        return reply


def first_tensor(args: tuple[Any, ...]) -> list[torch.Tensor]:
    """The first floating tensor argument (else the first), whose dtype decides, as the dispatcher does."""
    found = tensors_in(args)
    floating = [t for t in found if t.is_floating_point()]
    return (floating or found)[:1]


def type_name(tensor: Any) -> str:
    """Empty for a plain tensor, else what it is."""
    kind = type(tensor)
    return "" if kind is torch.Tensor else f"{kind.__module__}.{kind.__qualname__}"
