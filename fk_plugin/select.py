"""Which kernel is in force for each task: what FK_KERNELS names; without names, what records prove.

Records that prove a kernel do not exist yet, so `auto` without FK_KERNELS puts nothing in force.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from fk_plugin import registry
from fk_plugin.env import Mode, Settings
from fk_plugin.errors import UsageError
from fk_plugin.kernel import Kernel


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The kernels in force by task, and the tasks kept out by name."""

    kernels: Mapping[str, Kernel]
    excluded: frozenset[str] = frozenset()

    @property
    def fingerprint(self) -> str:
        """Identifies the exact code in force; part of the engines' compile-cache keys."""
        return ";".join(sorted(k.id for k in self.kernels.values()))

    def __bool__(self) -> bool:
        return bool(self.kernels)


NOTHING = Plan(kernels=MappingProxyType({}))


def plan(settings: Settings) -> Plan:
    """The plan that the environment asks for.

    Raises:
        UsageError: FK_KERNELS names an unknown task or kernel, or is malformed.
    """
    if settings.mode is Mode.OFF or not settings.kernels:
        return NOTHING
    chosen: dict[str, Kernel] = {}
    excluded = set()
    for part in filter(None, (p.strip() for p in settings.kernels.split(","))):
        if part.startswith("-"):
            excluded.add(registry.task(part[1:].strip()).name)
            continue
        task, equals, name = (x.strip() for x in part.partition("="))
        if not (task and equals and name):
            raise UsageError(f"FK_KERNELS expects task=kernel or -task, got {part!r}; see `fk list kernels`.")
        if task in chosen:
            raise UsageError(f"FK_KERNELS names {task} twice; keep one of them.")
        chosen[task] = registry.kernel(task, name)
    for name in excluded & chosen.keys():
        raise UsageError(f"FK_KERNELS both names and excludes {name}; keep one of them.")
    return Plan(kernels=MappingProxyType(chosen), excluded=frozenset(excluded))
