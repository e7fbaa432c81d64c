"""Adapter and Binding: where a task meets an engine's call site. The core knows engines through these only."""

from __future__ import annotations

import difflib
import inspect
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from fk_plugin.errors import FOREIGN_ERRORS


@dataclass(frozen=True, kw_only=True)
class Binding:
    """One row of an adapter's table: this callable of these engine versions computes that task.

    Attributes:
        engine: adapter name.
        versions: a PEP 440 range of the engine's own version.
        device: the torch device type on which the engine dispatches to `target`.
        task: the task's name.
        target: "module:Class.method".
        signature: str(inspect.signature(target)) in those versions.
        arguments: the values of the task's semantic variants at this site.
    """

    engine: str
    versions: str
    device: str
    task: str
    target: str
    signature: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def owner(self) -> str:
        """The class's name."""
        return self.target.split(":")[1].split(".")[0]

    @property
    def site(self) -> str:
        """The class as "module:Class"; rows of several tasks may share it."""
        return f"{self.module}:{self.owner}"

    @property
    def module(self) -> str:
        """The module the class is defined in."""
        return self.target.split(":")[0]

    @property
    def method(self) -> str:
        """The method's name."""
        return self.target.rsplit(".", 1)[1]

    def covers(self, engine_version: str) -> bool:
        """Whether the row is meant for this version of the engine (build tags and pre-releases included)."""
        try:
            public = Version(engine_version).public
        except InvalidVersion:  # a build from a source tree may call itself "dev"
            return False
        return bool(SpecifierSet(self.versions).contains(public, prereleases=True))

    def mismatch(self) -> str | None:
        """Why the installed target is not what the row describes, or None. Imports the engine's module."""
        try:
            target = pkgutil.resolve_name(self.target)
        except FOREIGN_ERRORS as error:
            return f"expected {self.target}, but it cannot be imported: {error}"
        try:
            found = str(inspect.signature(inspect.unwrap(target)))
        except (TypeError, ValueError):
            return f"expected {self.target} to be a method, but found a {type(target).__name__}"
        if found != self.signature:
            return f"expected {self.target} with signature {self.signature}, but found {found}"
        return None


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """An engine, as the core sees it.

    Attributes:
        engine: its name on the command line.
        distributions: names under which it may be installed, the preferred first.
        entry_point_group, entry_point: how the engine finds the plugin.
        filter_variable: the engine's variable that lists the plugins to load; unset means all.
        empty_filter_loads_all: whether setting it to nothing means all as well, and not none.
        bindings: the table.
        needs: what the plugin function itself uses of the engine, each as "module:name".
        launcher: "module:Class" of the end-to-end launcher (see fk_plugin.e2e.protocol).
    """

    engine: str
    distributions: tuple[str, ...]
    entry_point_group: str
    entry_point: str
    filter_variable: str
    empty_filter_loads_all: bool
    bindings: tuple[Binding, ...]
    launcher: str
    needs: tuple[str, ...] = ()

    def installed(self) -> tuple[str, str] | None:
        """(distribution, version) of the installed engine, or None."""
        for name in self.distributions:
            try:
                return name, version(name)
            except PackageNotFoundError:
                continue
        return None

    def lacking(self) -> str | None:
        """What the installed engine has not that the plugin function needs, or None. Imports the engine."""
        for target in self.needs:
            try:
                pkgutil.resolve_name(target)
            except FOREIGN_ERRORS as error:
                return (
                    f"nothing can be bound in this {self.engine}: expected {target}, but it cannot be imported: {error}"
                )
        return None

    def select(self, engine_version: str, device: str) -> tuple[Binding, ...]:
        """The rows for this version and device."""
        return tuple(b for b in self.bindings if b.covers(engine_version) and b.device == device)

    def stand_down(self, task: str, engine_version: str, device: str) -> str:
        """The sentence for a task that no row covers here."""
        rows = [b for b in self.bindings if b.task == task]
        ranges = sorted({f"{b.versions} on {b.device}" for b in rows})
        if not rows:
            near = difflib.get_close_matches(task, {b.task for b in self.bindings}, n=1)
            return f"{self.engine} has no site for task {task}" + (f" (nearest: {near[0]})" if near else "")
        return f"{task} expects {self.engine} {' or '.join(ranges)}, but found {engine_version} on {device}"


def matching(
    adapter: Adapter, tasks: Mapping[str, Any], engine_version: str, device: str
) -> tuple[list[Binding], list[str]]:
    """The bindings to apply for the planned `tasks`, and one sentence for each task that must stand down."""
    rows = adapter.select(engine_version, device)
    good: list[Binding] = []
    refused = []
    for task in tasks:
        mine = [b for b in rows if b.task == task]
        if not mine:
            refused.append(adapter.stand_down(task, engine_version, device))
        for binding in mine:
            problem = binding.mismatch()
            if problem:
                refused.append(f"{task}: {problem}")
            else:
                good.append(binding)
    return good, refused
