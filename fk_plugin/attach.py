"""What every adapter does once a model stands in memory: count its forwards, list its sites, enforce `strict`."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable
from typing import Any

from fk_plugin import dispatch, proof
from fk_plugin.env import Mode, Settings
from fk_plugin.errors import StrictError

log = logging.getLogger("fk_plugin")


def model_loaded(
    model: Any, settings: Settings, *, planned: Iterable[str], bound: Callable[[str, Any], bool]
) -> dict[str, list[str]]:
    """Take note of a freshly loaded model.

    Args:
        model: the root torch.nn.Module.
        planned: tasks that should be in force in this process.
        bound: (task, module) -> whether this module's calls go to our operator.

    Returns: names of the bound modules by task.
    Raises:
        StrictError: FK_PLUGIN=strict and a planned task has no bound module.
    """
    root = type(model).__name__
    sites = {task: [name for name, module in model.named_modules() if bound(task, module)] for task in planned}
    proof.event("model", root=root, bound=sites)
    key = f"forward|{root}"
    strict = settings.mode is Mode.STRICT
    if settings.proof_dir is not None:
        model.register_forward_pre_hook(lambda *_: proof.count(key))
    for task, names in sites.items():
        log.info("fk-plugin: %s bound at %d modules of %s", task, len(names), root)
        if strict and not names:
            raise refused(f"task {task} is not bound anywhere in {root}")
    if strict and sites:
        _check_first_forward(model, list(sites))
    return sites


def _check_first_forward(model: Any, tasks: list[str]) -> None:
    """After the first forward every planned operator must have been called; a graph replay never comes first."""

    def check(*_: Any) -> None:
        handle.remove()
        used = proof.usage(proof.snapshot())
        for task in tasks:
            if task not in used:
                raise refused(f"task {task} is bound but was never called in the first forward of {type(model).__name__}")

    handle = model.register_forward_hook(check)


def refused(reason: str) -> StrictError:
    """The error of strict mode, noted in the event log so that a parent process can quote it."""
    sentence = f"FK_PLUGIN=strict: {reason}; run `fk doctor`, or set FK_PLUGIN=auto to go on without it."
    proof.event("refused", message=sentence)
    return StrictError(sentence)


def stood_down(sentences: Iterable[str], settings: Settings) -> None:
    """One line per task that will not be bound; an error in strict mode."""
    for sentence in sentences:
        proof.event("stood_down", message=sentence)
        log.warning("fk-plugin stands down: %s", sentence)
        if settings.mode is Mode.STRICT:
            raise refused(sentence)


def trace_calls(task: str, owner: type, method: str) -> None:
    """Count the engine's own calls of `owner.method` at each module, for a run with FK_TRACE=1. Twice is once."""
    raw = owner.__dict__[method]
    original = raw.__func__ if isinstance(raw, staticmethod) else raw
    if getattr(original, "_fk_traced", False):
        return

    @functools.wraps(original)
    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        proof.count(f"engine|{task}|{getattr(self, '_fk_site', 'outside the model')}")
        return original(*args, **kwargs) if isinstance(raw, staticmethod) else original(self, *args, **kwargs)

    counted._fk_traced = True  # type: ignore[attr-defined]
    setattr(owner, method, counted)


def name_sites(model: Any, owners: Iterable[type]) -> None:
    """Write each module's qualified name on it, so that a trace can tell sites apart."""
    classes = tuple(owners)
    for name, module in model.named_modules():
        if isinstance(module, classes):
            module._fk_site = name


def put_in_force(kernels: Any, settings: Settings) -> None:
    """Define the operators of `kernels` (task -> Kernel) and put the kernels in force."""
    from fk_plugin import registry

    for task, kernel in kernels.items():
        dispatch.operator(registry.task(task)).use(kernel, strict=settings.mode is Mode.STRICT)
