"""Finds a task or a kernel by the words a command line uses."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from functools import cache
from pathlib import Path

from fk_plugin import registry
from fk_plugin.errors import UsageError
from fk_plugin.kernel import Kernel
from fk_plugin.task import Task


@cache
def task(spec: str) -> Task:
    """A registered task's name, or FILE.py:ATTRIBUTE holding a Task.

    Raises:
        UsageError: no such task, file or attribute.
    """
    if ".py:" not in spec:
        return registry.task(spec)
    file, _, attribute = spec.rpartition(":")
    path = Path(file).expanduser().resolve()
    if not path.is_file():
        raise UsageError(f"expected a Python file with a task, but {path} is no file.")
    name = f"fk_task_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    module = sys.modules.get(name)
    if module is None:
        found = importlib.util.spec_from_file_location(name, path)
        assert found is not None and found.loader is not None  # a .py file always has one
        module = importlib.util.module_from_spec(found)
        sys.modules[name] = module
        found.loader.exec_module(module)
    value = getattr(module, attribute, None)
    if not isinstance(value, Task):
        raise UsageError(f"{path.name}:{attribute} is not a Task; name one as FILE.py:TASK.")
    return value


def kernel(task_: Task, spec: str) -> Kernel:
    """A kernel of the task: a registered name, or FILE.py[:name].

    Raises:
        UsageError: it does not exist or cannot be loaded, with the reason.
    """
    if ".py" in spec:
        return registry.kernel_from_file(task_, spec)
    return registry.kernel(task_.name, spec)
