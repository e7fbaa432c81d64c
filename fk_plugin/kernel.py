"""Kernel and Requires: an implementation of a task, and where it may run."""

from __future__ import annotations

import ast
import hashlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fk_plugin.errors import UsageError

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


def source_hash(fn: Callable[..., Any], file: Path | None = None) -> str:
    """First 12 hex digits of the SHA-256 over the source of a kernel.

    That is the file that defines `fn` and `file`, the modules beside them that they import, and for each of these any
    .c, .cu or .cpp file beside it of the same stem.

    Raises:
        UsageError: `fn` comes from no file (exec, a builtin) and none is given.
    """
    target = inspect.unwrap(fn)
    try:
        defined = inspect.getsourcefile(target)
    except TypeError:  # a builtin, a partial, an instance with __call__
        defined = None
    start = [p for p in (file, Path(defined) if defined else None) if p is not None and p.is_file()]
    if not start:
        raise UsageError(f"the source of {fn!r} is not in a file, so it cannot be told from a changed one.")
    digest = hashlib.sha256()
    for path in sorted({p.resolve() for p in _with_siblings(start)}):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _with_siblings(start: list[Path]) -> set[Path]:
    found: set[Path] = set()
    waiting = list(start)
    while waiting:
        path = waiting.pop().resolve()
        if path in found:
            continue
        found.add(path)
        found |= {p for p in path.parent.glob(path.stem + ".*") if p.suffix in (".c", ".cu", ".cpp")}
        waiting += _imported_from_beside(path)
    return found


def _imported_from_beside(path: Path) -> list[Path]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level <= 1:
            module = node.module or ""
            names |= {module} if module else {alias.name for alias in node.names}
            names |= {f"{module}.{alias.name}" for alias in node.names} if module else set()
    beside = [path.parent / f"{name.split('.')[-1]}.py" for name in names]
    return [file for file in beside if file.is_file() and file.name != "__init__.py"]


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
