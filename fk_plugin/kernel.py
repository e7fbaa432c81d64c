"""Kernel and Requires: an implementation of a task, and where it may run."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

# Torch's names, as strings: this module is imported where torch is not.
DTYPES = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2",
          "int64", "int32", "int16", "int8", "uint8", "bool")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Requires:
    """Where a kernel may run. Fixed for a process: device, dtypes, compute capability.

    `dtypes` are torch names without the prefix ("bfloat16"). `min_sm` is (major, minor). `modules` are imports the
    kernel cannot do without.
    """

    device: str
    dtypes: tuple[str, ...]
    min_sm: tuple[int, int] | None = None
    modules: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.device not in ("cuda", "cpu", "any"):
            raise ValueError(f"device must be cuda, cpu or any, got {self.device!r}")
        if isinstance(self.dtypes, str) or not self.dtypes or any(d not in DTYPES for d in self.dtypes):
            raise ValueError(f"dtypes must be a tuple of names out of {', '.join(DTYPES)}, got {self.dtypes!r}")


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """An implementation of a task's operator.

    Attributes:
        task, name: the pair that selects it (`FK_KERNELS=task=name`).
        fn: same arguments as the task's functional overload, returns the same.
        requires: where it may run.
        guard: (*args) -> None if it can take these arguments, else a short reason; runs inside the operator on every
            call, sees real shapes and strides, must not raise and must not read device memory.
        prepare: work to do once per process before the first call (compiling); its failure makes the kernel
            unavailable.
        wrong_on_purpose: True for canaries, which a run must catch.
        source: hash of the file that defines `fn`, part of the engines' compile-cache keys.
    """

    task: str
    name: str
    fn: Callable[..., Any]
    requires: Requires
    guard: Callable[..., str | None] | None = None
    prepare: Callable[[], None] | None = None
    wrong_on_purpose: bool = False
    source: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.requires, Requires):
            raise TypeError(
                f"kernel {self.name}: requires= takes Requires(device=..., dtypes=...), got {self.requires!r}"
            )
        if not self.source:
            object.__setattr__(self, "source", source_hash(self.fn))

    def named(self, name: str) -> Kernel:
        """The same kernel under another name."""
        return replace(self, name=name)

    @property
    def id(self) -> str:
        """`task=name@hash`, what identifies this exact code."""
        return f"{self.task}={self.name}@{self.source}"


def source_hash(fn: Callable[..., Any]) -> str:
    """First 12 hex digits of the SHA-256 over the defining file and any .c, .cu or .cpp file beside it of that stem."""
    target = inspect.unwrap(fn)
    path = Path(inspect.getsourcefile(target) or "")
    digest = hashlib.sha256()
    for file in sorted(p for p in path.parent.glob(path.stem + ".*") if p.suffix in (".py", ".c", ".cu", ".cpp")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def kernel(
    task: str,
    *,
    requires: Requires,
    name: str | None = None,
    guard: Callable[..., str | None] | None = None,
    prepare: Callable[[], None] | None = None,
    wrong_on_purpose: bool = False,
) -> Callable[[Callable[..., Any]], Kernel]:
    """Decorator: make a Kernel of a function. Its name is the function's unless given."""

    def decorate(fn: Callable[..., Any]) -> Kernel:
        return Kernel(
            task=task,
            name=name or fn.__name__,
            fn=fn,
            requires=requires,
            guard=guard,
            prepare=prepare,
            wrong_on_purpose=wrong_on_purpose,
        )

    return decorate
