"""What every adapter does once a model stands in memory: count its forwards, list its sites, enforce `strict`."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from fk_plugin import dispatch, proof, rounding
from fk_plugin.adapter import Binding
from fk_plugin.env import Mode, Settings
from fk_plugin.errors import FOREIGN_ERRORS, StrictError

log = logging.getLogger("fk_plugin")

_DECLINED: dict[tuple[str, str], str] = {}  # (task, owner) -> reason
SITE = "_fk_site"  # attribute that holds a module's qualified name


def model_loaded(
    model: Any,
    settings: Settings,
    *,
    planned: Iterable[str],
    bound: Callable[[str, Any], bool],
    shared: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, list[str]]:
    """Take note of a freshly loaded model.

    Args:
        model: the root torch.nn.Module.
        planned: tasks that should be in force in this process.
        bound: (task, module) -> whether this module's calls go to our operator.
        shared: task -> why the engine may compute some of its bound modules itself, if it may.

    Returns: names of the bound modules by task.
    Raises:
        StrictError: FK_PLUGIN=strict and a planned task has no bound module.
    """
    root = type(model).__name__
    sites = {task: [name for name, module in model.named_modules() if bound(task, module)] for task in planned}
    proof.event("model", root=root, bound=sites, shared={t: why for t, why in shared.items() if sites.get(t)})
    strict = settings.mode is Mode.STRICT
    for task, names in sites.items():
        log.info("fk-plugin: %s bound at %d modules of %s", task, len(names), root)
        if strict and not names:
            reasons = "; ".join(reason for (of, _), reason in _DECLINED.items() if of == task)
            raise refused(f"task {task} is not bound anywhere in {root}" + (f": {reasons}" if reasons else ""))
    if settings.device_counters:
        device = next(model.parameters()).device
        if device.type == "cuda":
            proof.start_device_counters(device)
    if settings.proof_dir is not None or (strict and sites):
        certain = {task: names for task, names in sites.items() if task not in shared}
        _watch_forward(model, f"forward|{root}", _groups(certain) if strict else [])
    return sites


def _groups(sites: dict[str, list[str]]) -> list[list[str]]:
    """Tasks that share their modules, together: a pipeline stage may hold norms that all have a residual to add."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for task, names in sites.items():
        groups.setdefault(tuple(names), []).append(task)
    return list(groups.values())


def _watch_forward(model: Any, key: str, must_be_called: list[list[str]]) -> None:
    """Count the forwards of this model; after the first one a task of each of `must_be_called` must have been called.

    The instance's `forward` is wrapped rather than hooked: SGLang calls it directly, past torch's module hooks. The
    first forward is never a graph replay, so the operators' Python runs in it.
    """
    original = model.forward
    unproven = list(must_be_called)

    @functools.wraps(original)
    def forward(*args: Any, **kwargs: Any) -> Any:
        proof.count(key)
        proof.count_on_device(key)
        result = original(*args, **kwargs)
        if unproven:
            used = proof.usage(proof.snapshot())
            for tasks in unproven:
                if used.keys().isdisjoint(tasks):
                    named = " or ".join(tasks)
                    raise refused(f"task {named} is bound but was never called in the first forward ({key})")
            unproven.clear()
        return result

    model.forward = forward


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


def bind_by(
    bindings: list[Binding], key: Callable[[Binding], str], bind: Callable[[list[Binding]], None], settings: Settings
) -> list[Binding]:
    """Call `bind` with the bindings of each key and return those that are bound now.

    Where the engine is not built as its adapter expects, `bind` fails on the engine's own code; those tasks stand down
    rather than end the engine.
    """
    bound = []
    for place in dict.fromkeys(key(b) for b in bindings):
        rows = [b for b in bindings if key(b) == place]
        try:
            bind(rows)
        except FOREIGN_ERRORS as error:
            reason = f"{place} cannot be bound: {type(error).__name__}: {error}"
            stood_down([f"{task}: {reason}" for task in dict.fromkeys(b.task for b in rows)], settings)
        else:
            bound += rows
    return bound


def trace_calls(owner: type, method: str, task_of: Callable[..., str]) -> None:
    """Count the engine's own calls of `owner.method` at each module, for a run with FK_TRACE=1. Twice is once.

    `task_of` takes the call's arguments and says which task it is; a class may meet several. Results are rounded once
    more while that is asked for (see fk_plugin.rounding).
    """
    from fk_plugin import registry

    raw = inspect.getattr_static(owner, method)  # also one that the class inherits
    original = raw.__func__ if isinstance(raw, staticmethod) else raw
    if getattr(original, "_fk_traced", False):
        return

    @functools.wraps(original)
    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        task = task_of(self, *args, **kwargs)
        proof.count(f"engine|{task}|{getattr(self, SITE, 'outside the model')}")
        result = original(*args, **kwargs) if isinstance(raw, staticmethod) else original(self, *args, **kwargs)
        folder = proof.folder()
        if folder is not None and task in rounding.asked(folder):
            rounding.again(result, registry.task(task).bitwise_results)
        return result

    counted._fk_traced = True  # type: ignore[attr-defined]
    setattr(owner, method, counted)


def name_sites(model: Any, owners: Iterable[type]) -> None:
    """Write each module's qualified name on it, so that a trace can tell sites apart."""
    classes = tuple(owners)
    for name, module in model.named_modules():
        if isinstance(module, classes):
            setattr(module, SITE, name)


def operator_call(binding: Binding) -> Callable[..., Any]:
    """The operator of a binding's task with the arguments that its site fixes. It returns what the task computes, also
    where the task writes its arguments: those, or new tensors where a compiler is looking.

    A compiler cannot see that overwriting is harmless: it copies what an opaque operator writes, if that is a view or
    an input of the graph. (On an H200 vLLM's graph held two such copies a layer.)
    """
    import torch

    from fk_plugin import registry

    task = registry.task(binding.task)
    defined = dispatch.operator(task)
    operator, arguments = getattr(torch.ops.fk, binding.task), dict(binding.arguments)
    returning = getattr(operator, "returning", None) if defined.written else None

    def call(*args: Any) -> Any:
        if returning is not None and torch.compiler.is_compiling():
            return returning(*args, **arguments)
        result = operator(*args, **arguments)
        return tuple(args[i] for i in defined.written) if defined.written else result

    return call


def declined(tasks: Iterable[str], owner: str, reason: str) -> None:
    """Note, once, that a site is left to the engine although it could be bound."""
    for task in tasks:
        if (task, owner) not in _DECLINED:
            _DECLINED[task, owner] = reason
            proof.event("declined", task=task, owner=owner, reason=reason)
            log.info("fk-plugin declines %s at %s: %s", task, owner, reason)


def put_in_force(kernels: Any, settings: Settings) -> None:
    """Define the operators of `kernels` (task -> Kernel) and put the kernels in force."""
    from fk_plugin import registry

    for task, kernel in kernels.items():
        dispatch.operator(registry.task(task)).use(kernel, strict=settings.mode is Mode.STRICT)
