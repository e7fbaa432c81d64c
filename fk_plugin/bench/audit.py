"""What a candidate changed in its own process: replaced functions, threads and children left behind.

This runs inside the process it looks at, so it catches what does not hide from it; the parent's clock and the judging
elsewhere do not depend on it.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

_MODULES = ("time", "statistics", "json", "os", "gc", "threading", "torch", "torch.cuda", "torch.nn.functional")
_CLASSES = (torch.Tensor, torch.Generator, torch.cuda.Event, torch.cuda.Stream, torch.cuda.CUDAGraph)


def _targets() -> Iterator[tuple[str, Any]]:
    for name in _MODULES:
        yield name, importlib.import_module(name)
    for name, module in list(sys.modules.items()):
        if name.startswith(("fk_plugin.", "fk_tasks.")) and isinstance(module, types.ModuleType):
            yield name, module
            for key, value in list(vars(module).items()):
                if isinstance(value, type) and value.__module__ == name:
                    yield f"{name}.{key}", value
    for cls in _CLASSES:
        yield f"{cls.__module__}.{cls.__qualname__}", cls


def functions() -> dict[str, tuple[Any, ...]]:
    """Every watched callable by name, with what would change if it were replaced or rewritten in place.

    The objects themselves are kept, so that no new object can take an old one's id.
    """
    found = {}
    for owner, holder in _targets():
        for key, value in list(vars(holder).items()):
            plain = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
            if callable(plain) and not isinstance(plain, (type, types.ModuleType)):
                code, defaults = getattr(plain, "__code__", None), getattr(plain, "__defaults__", None)
                found[f"{owner}.{key}"] = (value, code, defaults)
    return found


def replaced(before: dict[str, tuple[Any, ...]]) -> list[str]:
    """Names of watched callables that are no longer what they were, or gone."""
    now = functions()
    return sorted(
        name
        for name, old in before.items()
        if name not in now or any(a is not b for a, b in zip(old, now[name], strict=True))
    )


def workers() -> set[str]:
    """Python threads alive besides the main one, and child processes. Pools of OpenMP threads are neither."""
    main = threading.main_thread()
    found = {f"thread {t.name}" for t in threading.enumerate() if t is not main and t.is_alive()}
    for task in Path(f"/proc/{os.getpid()}/task").iterdir():
        try:
            found |= {f"process {pid}" for pid in (task / "children").read_text().split()}
        except OSError:
            continue  # the thread ended between listing and reading
    return found
