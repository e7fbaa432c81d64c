"""Finds tasks, kernels and adapters through entry points, and loads a stranger's kernel from a file.

A package named by an entry point in `fk_plugin.tasks` is searched for Task instances, module by module. A package in
`fk_plugin.kernels` holds one sub-package per task and one module per kernel. An entry point in `fk_plugin.adapters`
names an Adapter. Nothing is imported before it is asked for.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fk_plugin.errors import FOREIGN_ERRORS, UsageError
from fk_plugin.kernel import Kernel, Requires, source_hash
from fk_plugin.task import Task

if TYPE_CHECKING:
    from fk_plugin.adapter import Adapter

TASKS, KERNELS, ADAPTERS = "fk_plugin.tasks", "fk_plugin.kernels", "fk_plugin.adapters"


@dataclass(frozen=True, kw_only=True)
class Unavailable:
    """A kernel module that could not be imported here, and why."""

    task: str
    name: str
    reason: str


def _modules(package: ModuleType) -> Iterator[str]:
    for info in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not info.ispkg and not info.name.rsplit(".", 1)[1].startswith("_"):
            yield info.name


def _package(point: EntryPoint) -> ModuleType:
    try:
        package: ModuleType = point.load()
    except FOREIGN_ERRORS as error:
        raise UsageError(f"{_broken(point, error)}; install the package it belongs to again, or remove it.") from error
    return package


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except FOREIGN_ERRORS as error:
        raise UsageError(f"{name} cannot be imported: {error}; install its package again.") from error


def _broken(point: EntryPoint, error: Exception) -> str:
    return f"{point.value}, which the entry point {point.name} of {point.group} names, cannot be imported: {error}"


@lru_cache(maxsize=1)
def tasks() -> dict[str, Task]:
    """Every task by name. Imports torch."""
    found: dict[str, Task] = {}
    for point in entry_points(group=TASKS):
        for module in _modules(_package(point)):
            for value in vars(_module(module)).values():
                if not isinstance(value, Task):
                    continue
                if value.name in found and found[value.name] is not value:
                    raise UsageError(f"task {value.name} is defined twice, second in {module}; rename one of them.")
                found[value.name] = value
    return found


def task(name: str) -> Task:
    """The task called `name`; UsageError with the nearest names if there is none."""
    try:
        return tasks()[name]
    except KeyError:
        raise UsageError(unknown("task", name, tasks())) from None


@cache
def kernels(task_name: str) -> tuple[dict[str, Kernel], tuple[Unavailable, ...]]:
    """The kernels of one task by name, and those whose module cannot be imported here."""
    found: dict[str, Kernel] = {}
    missing = []
    for point in entry_points(group=KERNELS):
        root = _package(point)
        name = f"{root.__name__}.{task_name}"
        if importlib.util.find_spec(name) is None:
            continue
        for module in _modules(importlib.import_module(name)):
            try:
                loaded = importlib.import_module(module)
            except FOREIGN_ERRORS as error:
                missing.append(Unavailable(task=task_name, name=module.rsplit(".", 1)[1], reason=str(error)))
                continue
            for item in _kernels_in(loaded):
                if item.task == task_name:
                    found[item.name] = item
    return found, tuple(missing)


def kernel_folders() -> list[Path]:
    """Where the packages of kernels lie; one that cannot be imported has none."""
    return [Path(path) for point in entry_points(group=KERNELS) for path in _package(point).__path__]


def kernel(task_name: str, name: str) -> Kernel:
    """One kernel by task and name, or from FILE.py:function.

    Raises:
        UsageError: no such task or kernel (with the nearest names), or it cannot be imported here (with the reason).
    """
    if ".py" in name:
        return kernel_from_file(task(task_name), name)
    found, missing = kernels(task(task_name).name)
    if name in found:
        return found[name]
    for item in missing:
        if item.name == name:
            raise UsageError(f"kernel {task_name}={name} cannot be imported here: {item.reason}.")
    raise UsageError(unknown(f"kernel of {task_name}", name, [*found, *(m.name for m in missing)]))


def kernel_from_file(task_: Task, spec: str) -> Kernel:
    """Load a candidate: "FILE.py" or "FILE.py:function", a @kernel or a plain function with the task's arguments.

    A plain function is taken for CPU and CUDA alike, for every dtype; use @kernel to narrow it.
    """
    file, _, attribute = spec.partition(":")
    path = Path(file).expanduser().resolve()
    if not path.is_file():
        raise UsageError(f"expected a Python file with a kernel for {task_.name}, but {path} is no file.")
    module = _load_file(path)
    if not attribute:
        own = [k for k in _kernels_in(module) if k.task == task_.name]
        if not hasattr(module, task_.name) and len(own) == 1:
            return own[0].named(f"{path.stem}:{own[0].name}")
    attribute = attribute or task_.name
    value = getattr(module, attribute, None)
    if value is None:
        named = [k.name for k in _kernels_in(module)]
        raise UsageError(
            f"{path.name} has no {attribute!r}; it defines kernels {named or 'none'}. Name one as {path.name}:NAME."
        )
    if isinstance(value, Kernel):
        if value.task != task_.name:
            raise UsageError(f"{path.name}:{attribute} is a kernel of {value.task}, not of {task_.name}.")
        return value.named(f"{path.stem}:{attribute}")
    if not callable(value):
        raise UsageError(f"{path.name}:{attribute} is a {type(value).__name__}, not a function or @kernel.")
    return _plain(task_, value, f"{path.stem}:{attribute}", path)


def _plain(task_: Task, fn: Callable[..., Any], name: str, file: Path) -> Kernel:
    every = ("float64", "float32", "float16", "bfloat16")
    needs = Requires(device="any", dtypes=every)
    return Kernel(task=task_.name, name=name, fn=fn, requires=needs, source=source_hash(fn, file))


def _load_file(path: Path) -> ModuleType:
    name = f"fk_candidate_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}_{path.stem}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # a .py file always has one
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (SyntaxError, ImportError, NameError, AttributeError, TypeError, ValueError) as error:
        del sys.modules[name]
        raise UsageError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error
    return module


def _kernels_in(module: ModuleType) -> list[Kernel]:
    return [value for value in vars(module).values() if isinstance(value, Kernel)]


@lru_cache(maxsize=1)
def _adapters() -> tuple[dict[str, Adapter], dict[str, str]]:
    found, broken = {}, {}
    for point in entry_points(group=ADAPTERS):
        try:
            found[point.name] = point.load()
        except FOREIGN_ERRORS as error:
            broken[point.name] = _broken(point, error)
    return found, broken


def adapters() -> dict[str, Adapter]:
    """Every engine adapter by engine name. Imports no engine."""
    return _adapters()[0]


def broken_adapters() -> dict[str, str]:
    """Why an adapter cannot be imported, by engine name."""
    return _adapters()[1]


def adapter(engine: str) -> Adapter:
    """The adapter of `engine`; UsageError with the nearest names if there is none, or with why it is broken."""
    if engine in broken_adapters():
        raise UsageError(f"{broken_adapters()[engine]}; install the package it belongs to again.")
    try:
        return adapters()[engine]
    except KeyError:
        raise UsageError(unknown("engine", engine, adapters())) from None


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """The sentence for a name that does not exist, nearest valid ones first."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.4) or names[:5]
    hint = f"did you mean {', '.join(near)}?" if near else "none is installed."
    return f"there is no {kind} called {name!r}; {hint}"
