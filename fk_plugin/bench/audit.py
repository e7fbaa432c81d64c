"""What a candidate changed in its own process: functions, settings and modes, threads and children left behind.

This runs inside the process it looks at, so it catches what does not hide from it; the parent's clock and the judging
elsewhere do not depend on it.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

_MODULES = ("time", "statistics", "json", "os", "gc", "threading", "torch", "torch.cuda", "torch.nn.functional")
_CLASSES = (torch.Tensor, torch.Generator, torch.cuda.Event, torch.cuda.Stream, torch.cuda.CUDAGraph)

_monitoring = getattr(sys, "monitoring", None)  # Python 3.12 has it
_WINDOW_S, _BUSY = 0.05, 0.1  # a thread is at work when it runs for this share of this time


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


def settings() -> dict[str, Any]:
    """Process-wide switches, hooks and modes that a kernel has no business leaving changed: they reach the baseline."""
    return {
        "sys.setprofile": sys.getprofile(),
        "sys.settrace": sys.gettrace(),
        "sys.monitoring": [_monitoring.get_tool(n) for n in range(6)] if _monitoring is not None else [],
        "sys.setswitchinterval": sys.getswitchinterval(),
        "gc.callbacks": list(gc.callbacks),
        "gc.set_threshold": gc.get_threshold(),
        "signal.setitimer": [signal.getitimer(n)[1] for n in (signal.ITIMER_REAL, signal.ITIMER_PROF)],
        "os.sched_setaffinity": sorted(os.sched_getaffinity(0)),
        "os.nice": os.getpriority(os.PRIO_PROCESS, 0),
        "TorchFunctionMode": torch._C._len_torch_function_stack(),
        "TorchDispatchMode": torch._C._len_torch_dispatch_stack(),
        "torch.profiler": torch.autograd._profiler_enabled(),
        "torch.set_num_threads": torch.get_num_threads(),
        "torch.set_grad_enabled": torch.is_grad_enabled(),
        "torch.set_default_dtype": torch.get_default_dtype(),
        "torch.set_float32_matmul_precision": torch.get_float32_matmul_precision(),
        "torch.use_deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "torch.backends.cudnn.benchmark": torch.backends.cudnn.benchmark,
        "torch.backends.cudnn.enabled": torch.backends.cudnn.enabled,
        "torch.backends.mkldnn.enabled": torch.backends.mkldnn.enabled,
    }


def left_on(before: dict[str, Any]) -> list[str]:
    """What `settings` says is no longer as it was, with both values."""
    now = settings()
    return [f"{name} at {now[name]} (was {old})" for name, old in before.items() if now[name] != old]


def workers() -> set[str]:
    """Threads of Python besides the main one ("thread NAME TID"), and child processes ("process PID").

    Pools of OpenMP threads are neither. Orphans of children count as children, see zygote.
    """
    main = threading.main_thread()
    found = {f"thread {t.name} {t.native_id}" for t in threading.enumerate() if t is not main and t.is_alive()}
    for task in Path(f"/proc/{os.getpid()}/task").iterdir():
        try:
            found |= {f"process {pid}" for pid in (task / "children").read_text().split()}
        except OSError:
            continue  # the thread ended between listing and reading
    return found


def left(before: set[str]) -> list[str]:
    """What of `workers` is new and at work: child processes, and threads that use the processor while nobody calls.

    A pool whose threads wait for the next call is an honest way to run on several cores.
    """
    new = workers() - before
    threads = {name for name in new if name.startswith("thread ")}
    if threads:
        start = {name: _on_cpu_ns(name) for name in threads}
        time.sleep(_WINDOW_S)
        new -= {name for name in threads if _on_cpu_ns(name) - start[name] < _BUSY * _WINDOW_S * 1e9}
    return sorted(new)


def _on_cpu_ns(name: str) -> int:
    try:
        return int(Path(f"/proc/{os.getpid()}/task/{name.split()[-1]}/schedstat").read_text().split()[0])
    except (OSError, IndexError):
        return 0  # it has ended
