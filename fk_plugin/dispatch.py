"""One opaque torch operator per task: check, call the kernel in force, else the named fallback, and count.

The operator is torch.ops.fk.<task>. Compilers see its schema and its fake only, so what depends on token counts and
strides is decided here, inside, on every call, and never burned into a compiled graph.

A kernel implements a task's first overload; the others are derived from it:
    first returns, another writes keyword-only arguments ("out"): they receive the results. A kernel with a parameter
        `out` writes there itself: one tensor, or a tuple where there are several results.
    first writes its arguments, another returns: the results stand for the written arguments, in order, which stay as
        they were. A kernel with a parameter `out` (a tuple) writes there instead of over its arguments.
    first writes its arguments, and none returns: it must only store, so that the same call again gives the same; the
        fallback relies on this after a kernel has failed.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from fk_plugin import proof
from fk_plugin.errors import StrictError
from fk_plugin.kernel import Kernel
from fk_plugin.task import Overload, Task

_LIBRARY = torch.library.Library("fk", "FRAGMENT")
_OPERATORS: dict[str, Operator] = {}


def unavailable(kernel: Kernel) -> str | None:
    """Why `kernel` cannot run on this machine, or None.

    The compute capability is left to the first call: asking for it here would initialise CUDA in the engine's parent
    process, which then could not fork.
    """
    need = kernel.requires
    for module in need.modules:
        if importlib.util.find_spec(module) is None:
            return f"it needs the package {module}, which is not installed"
    if need.device == "cuda" and not torch.cuda.is_available():
        return "it needs an NVIDIA GPU, and none is visible"
    return None


class Operator:
    """A task's operator in this process: which kernel is in force, and what runs when it cannot."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.kernel: Kernel | None = None
        self.strict = False
        self.fallback_name = "reference"
        self.fallback: Callable[..., Any] = task.reference
        self._disabled: str | None = "no kernel in force"
        self._takes_out = False
        self._proven = False
        self.written = _written(task.overloads[0])  # positions of the arguments that the first form writes
        # A first form that reads what it overwrites: after a failure half way there is nothing left to fall back on.
        self._overwrites = bool(self.written) and any(not o.mutates for o in task.overloads)
        self._dtypes: frozenset[torch.dtype] = frozenset()
        self._check_capability = False
        for overload in task.overloads:
            self._define(overload)

    def _define(self, overload: Overload) -> None:
        name = self.task.name if overload.name == "default" else f"{self.task.name}.{overload.name}"
        _LIBRARY.define(overload.schema)
        if overload is self.task.overloads[0]:
            body: Callable[..., Any] = self._first
        else:
            body = self._out_form if overload.mutates else partial(self._returning_form, overload.fake)
        for key in ("CPU", "CUDA"):
            _LIBRARY.impl(name, body, key)
        torch.library.register_fake(f"fk::{name}", overload.fake, lib=_LIBRARY)

    def use(self, kernel: Kernel | None, *, strict: bool = False) -> None:
        """Put `kernel` in force (None: the fallback only). Prepares it; a failure disables it with the reason.

        Raises:
            StrictError: `strict`, and the kernel cannot run here.
        """
        self.kernel, self.strict, self._proven = kernel, strict, False
        if kernel is None:
            self._disabled = "no kernel in force"
            return
        self._disabled = unavailable(kernel)
        self._check_capability = kernel.requires.min_sm is not None
        if self._disabled is None and kernel.prepare is not None:
            try:
                kernel.prepare()
            except Exception as error:  # noqa: BLE001  # boundary: a candidate's own code; the engine must start
                self._disabled = f"its preparation failed: {type(error).__name__}: {error}"
        self._takes_out = "out" in inspect.signature(kernel.fn).parameters
        self._dtypes = frozenset(getattr(torch, name) for name in kernel.requires.dtypes)
        if self._disabled is not None:
            proof.event("unavailable", task=self.task.name, kernel=kernel.name, reason=self._disabled)
            if strict:
                raise StrictError(f"kernel {self.task.name}={kernel.name} cannot run here: {self._disabled}.")

    def set_fallback(self, name: str, fn: Callable[..., Any]) -> None:
        """What runs when the kernel cannot: an engine's own function with the task's arguments, and its name."""
        self.fallback_name, self.fallback = name, fn

    @property
    def disabled(self) -> str | None:
        """Why the kernel is out of force for the rest of the process, or None."""
        return self._disabled

    def refusal(self, args: tuple[Any, ...]) -> str | None:
        """Why the kernel cannot take these arguments, or None. Never raises, never waits for the device."""
        kernel = self.kernel
        if self._disabled is not None or kernel is None:
            return self._disabled or "no kernel in force"
        first = args[0]
        if kernel.requires.device not in ("any", first.device.type):
            return f"device {first.device.type}"
        if first.dtype not in self._dtypes:
            return f"dtype {str(first.dtype).removeprefix('torch.')}"
        if self._check_capability:
            self._check_capability = False
            have = torch.cuda.get_device_capability(first.device)
            if have < (kernel.requires.min_sm or have):
                self._disabled = f"compute capability {have[0]}.{have[1]}"
                return self._disabled
        return kernel.guard(*args) if kernel.guard is not None else None

    def _first(self, *args: Any) -> Any:
        size = proof.bucket(self.task.tokens(*args))
        reason = self.refusal(args)
        if reason is None:
            proven = self._proven
            try:
                run = self._rehearse if self._overwrites and not proven else self.kernel.fn  # type: ignore[union-attr]
                result = run(*args)
            except Exception as error:  # boundary: a candidate's code; `auto` goes on
                reason = self._failed(error)
                if self._overwrites and proven:
                    raise
            else:
                self._called(size)
                return result
        proof.count(f"fall|{self.task.name}|{self.fallback_name}|{reason}|{size}")
        proof.count_on_device(f"fall|{self.task.name}|{self.fallback_name}|{reason}|{size}")
        return self.fallback(*args)

    def _rehearse(self, *args: Any) -> None:
        """The first call of a kernel that overwrites its arguments: on copies, so that a failure leaves them whole.

        Engines warm up before they serve, so the copies cost nothing that counts.
        """
        copies = self._copied(args)
        self.kernel.fn(*copies)  # type: ignore[union-attr]
        for i in self.written:
            args[i].copy_(copies[i])

    def _copied(self, args: tuple[Any, ...]) -> list[Any]:
        return [a.clone(memory_format=torch.contiguous_format) if i in self.written else a for i, a in enumerate(args)]

    def _out_form(self, *args: Any, **outs: Any) -> None:
        results = tuple(outs.values())
        if not self._into(args, results):
            returned = self._first(*args)
            for out, result in zip(results, returned if isinstance(returned, tuple) else (returned,), strict=True):
                out.copy_(result)

    def _returning_form(self, allocate: Callable[..., Any], *args: Any) -> Any:
        outs = allocate(*args)
        if self._into(args, outs if isinstance(outs, tuple) else (outs,)):
            return outs
        copies = self._copied(args)
        self._first(*copies)
        results = tuple(copies[i] for i in self.written)
        return results if isinstance(outs, tuple) else results[0]

    def _into(self, args: tuple[Any, ...], outs: tuple[Any, ...]) -> bool:
        """Let the kernel write into `outs`, none of which is an argument it reads; False if it did not."""
        if not self._takes_out or self.refusal(args) is not None:
            return False
        size = proof.bucket(self.task.tokens(*args))
        try:
            self.kernel.fn(*args, out=outs[0] if len(outs) == 1 else outs)  # type: ignore[union-attr]
        except Exception as error:  # noqa: BLE001  # boundary: a candidate's code; the fallback follows
            self._failed(error)
            return False
        self._called(size)
        return True

    def _called(self, size: int) -> None:
        self._proven = True
        name = self.kernel.name  # type: ignore[union-attr]
        proof.count(f"call|{self.task.name}|{name}|{size}")
        proof.count_on_device(f"call|{self.task.name}|{name}|{size}")

    def _failed(self, error: Exception) -> str:
        """Disable the kernel after it raised, or raise where going on would be wrong."""
        assert self.kernel is not None
        name = f"{self.task.name}={self.kernel.name}"
        sentence = f"kernel {name} failed: {type(error).__name__}: {error}"
        proof.event("kernel_error", task=self.task.name, kernel=self.kernel.name, message=sentence)
        if self.strict:
            raise StrictError(f"{sentence}. FK_PLUGIN=strict ends the run; auto would go on without it.") from error
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            raise error  # a capture cannot be continued after an error
        self._disabled = f"kernel error {type(error).__name__}"
        return self._disabled


def _written(overload: Overload) -> tuple[int, ...]:
    """Positions of the positional arguments that the schema declares written."""
    arguments = torch._C.parse_schema(f"fk::{overload.schema}").arguments
    return tuple(
        i for i, a in enumerate(arguments) if not a.kwarg_only and a.alias_info is not None and a.alias_info.is_write
    )


def operator(task: Task) -> Operator:
    """The operator of `task`, defined on first use."""
    found = _OPERATORS.get(task.name)
    if found is None:
        found = _OPERATORS[task.name] = Operator(task)
    return found


def operators() -> dict[str, Operator]:
    """The operators defined in this process, by task."""
    return dict(_OPERATORS)
