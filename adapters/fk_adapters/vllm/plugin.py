"""The function vLLM runs in every process (entry point `vllm.general_plugins`).

An exception here kills the engine, so it raises only for what the user must hear: a name in FK_KERNELS that does not
exist, and strict mode. vLLM runs it once per process, but a forked child inherits the result; a second run changes
nothing.
"""

from __future__ import annotations

import functools
import logging
import pkgutil
import sys
from types import MethodType
from typing import Any

from fk_adapters.vllm import fallbacks, sites
from fk_adapters.vllm.bindings import ADAPTER
from fk_plugin import attach, dispatch, env, proof, records, registry, select
from fk_plugin.adapter import Binding, matching
from fk_plugin.errors import FOREIGN_ERRORS

log = logging.getLogger("fk_plugin")


class _State:
    bindings: tuple[Binding, ...] = ()
    classes: dict[str, type] = {}  # site -> our class
    settings: env.Settings | None = None
    traced: list[type] = []  # the classes whose calls are counted, of this version's rows
    shared: dict[str, str] = {}  # task -> why some of its sites may be taken by vLLM


def register() -> None:
    """Bind what the environment asks for. Without FK_KERNELS and FK_PROOF_DIR it touches nothing."""
    settings = env.read()
    plan = select.plan(settings)
    if not plan and settings.proof_dir is None:
        return
    proof.open_folder(settings.proof_dir)
    lacking = ADAPTER.lacking()
    if lacking:
        attach.stood_down([lacking], settings)
        return
    import vllm
    from vllm.platforms import current_platform

    device = (
        "cuda" if current_platform.is_cuda() else "cpu" if current_platform.is_cpu() else current_platform.device_type
    )
    if settings.trace:
        _trace(vllm.__version__, device)
    good, refused = matching(ADAPTER, plan.kernels, vllm.__version__, device)
    attach.stood_down(refused, settings)
    good = [b for b in good if _slot_is_free(b, settings)]
    attach.put_in_force({b.task: plan.kernels[b.task] for b in good}, settings)
    good = attach.bind_by(good, lambda b: b.site, _bind, settings)
    if good:
        # vLLM reuses ahead-of-time artifacts by key, and the key knows nothing of plugins: without this a graph
        # compiled before the plugin was installed is loaded and no kernel of ours is ever called.
        vllm.envs.environment_variables["VLLM_FK_PLUGIN_FINGERPRINT"] = lambda: _fingerprint(plan, settings)
    _State.bindings, _State.settings = tuple(good), settings
    proof.event("installed", engine="vllm", version=vllm.__version__, device=device, kernels=plan.fingerprint)
    _watch_model_loading()


def _fingerprint(plan: select.Plan, settings: env.Settings) -> str:
    left = [] if settings.bind_compiled else [task for task in plan.kernels if _slower(task) is not None]
    return f"{plan.fingerprint};left to the compiler:{','.join(left)}"


def _slot_is_free(binding: Binding, settings: env.Settings) -> bool:
    """Registering twice is an assertion error in vLLM; another plugin's class in the slot is that plugin's."""
    registry_of_class = _registry(pkgutil.resolve_name(binding.site))
    if registry_of_class is None:
        attach.stood_down([f"{binding.task}: {binding.site} cannot be bound: it is no CustomOp"], settings)
        return False
    held = registry_of_class.op_registry_oot.get(binding.owner)
    if held is None or held is _State.classes.get(binding.site):
        return True
    attach.stood_down(
        [f"{binding.task}: {binding.owner} is already replaced by {held.__module__}.{held.__qualname__}"], settings
    )
    return False


def _registry(in_tree: type) -> Any:
    """The module that replaces this class, or None: 0.32 has a second CustomOp, with a register of its own."""
    return next((sys.modules[c.__module__] for c in in_tree.__mro__ if c.__name__ == "CustomOp"), None)


def _bind(rows: list[Binding]) -> None:
    """Register the replacement of one class, which all `rows` share."""
    first = rows[0]
    if first.site in _State.classes:
        return
    in_tree: Any = pkgutil.resolve_name(first.site)
    calls = {}
    for binding in rows:
        calls[binding.task] = attach.operator_call(binding)
        dispatch.operator(registry.task(binding.task)).set_fallback(*fallbacks.of(binding))
    replacement = _replacement(in_tree, first, calls)
    in_tree_name = in_tree.name
    _registry(in_tree).CustomOp.register_oot(replacement, name=first.owner)
    # register_oot writes the class name over the operator's name, and "+silu_and_mul" would no longer mean it.
    replacement.name = in_tree_name
    _State.classes[first.site] = replacement


def _replacement(in_tree: Any, row: Binding, calls: sites.Calls) -> Any:
    """A subclass of the engine's class whose method for this device calls our operators."""
    from vllm.config import get_cached_compilation_config

    site = sites.of(row.owner)
    own = getattr(in_tree, row.method)

    class Replacement(in_tree):
        @classmethod
        def enabled(cls) -> bool:
            # Under Inductor custom_ops defaults to "none", which means the engine's generic code; the user can
            # still refuse by name.
            config = get_cached_compilation_config()
            if calls.keys() <= _reasons(site, calls, config, compiled=not super().enabled()).keys():
                return bool(super().enabled())
            return f"-{cls.name}" not in config.custom_ops

        def dispatch_forward(self, *args: Any, **kwargs: Any) -> Any:
            """Where the site declines a task, vLLM's own method; declines it all, the graph stays what it was.

            The same where the user refuses: vLLM then takes forward_native, which at some sites is the one we replace.
            """
            config = get_cached_compilation_config()
            reasons = _reasons(site, calls, config, compiled=not super().enabled())
            refused = f"-{type(self).name}" in config.custom_ops
            self._fk_tasks = frozenset() if refused else _through_ir(site, row.owner, reasons, config)
            for task, reason in reasons.items():
                if task not in self._fk_tasks:
                    attach.declined([task], row.owner, reason)
            chosen = super().dispatch_forward(*args, **kwargs)
            if getattr(chosen, "__func__", None) is not Replacement.__dict__[row.method]:
                return chosen
            kept = {task: call for task, call in calls.items() if task not in reasons}
            if not kept or not (reasons or self._enforce_enable or self.enabled()):
                return functools.partial(own, self)
            self._fk_tasks = frozenset(kept)
            return MethodType(site.method(kept, in_tree.forward_native), self) if reasons else chosen

    setattr(Replacement, row.method, site.method(calls, own))
    Replacement.__name__ = Replacement.__qualname__ = f"Fk{in_tree.__name__}"
    return Replacement


def _reasons(site: sites.Site, calls: sites.Calls, config: Any, *, compiled: bool) -> dict[str, str]:
    """Why tasks of a site are left to vLLM. `compiled`: it would run generic code there, which Inductor compiles."""
    for_all = site.declines(config)
    if for_all is not None:
        return dict.fromkeys(calls, for_all)
    settings = _State.settings
    if not compiled or config.mode.name == "NONE" or settings is None or settings.bind_compiled:
        return {}
    return {task: reason for task in calls if (reason := _slower(task)) is not None}


@functools.cache
def _slower(task: str) -> str | None:
    from vllm.platforms import current_platform

    kernel = dispatch.operator(registry.task(task)).kernel
    return None if kernel is None else records.slower_when_compiled(kernel, current_platform.get_device_name())


def _through_ir(site: sites.Site, owner: str, reasons: dict[str, str], config: Any) -> frozenset[str]:
    """The tasks that a pass of vLLM's keeps from the class, and that our provider computes where the pass does not."""
    if not site.provided or site.declines(config) is None or _State.settings is None:
        return frozenset()
    taken = set()
    for task, reason in reasons.items():
        left = None if _State.settings.bind_compiled else _slower(task)
        try:
            from fk_adapters.vllm import ir_route

            left = left or ir_route.prefer(task)
        except FOREIGN_ERRORS as error:
            left = f"{type(error).__name__}: {error}"
        if left is None:
            taken.add(task)
            _State.shared[task] = f"{reason}; what it leaves comes to us through vLLM's IR"
        else:
            attach.declined([task], owner, f"{reason}, and what it leaves stays with vLLM's IR: {left}")
    return frozenset(taken)


def _bound(task: str, module: Any) -> bool:
    """Whether this module is ours and its dispatch reaches our operator (custom_ops may have refused it)."""
    ours = any(b.task == task and type(module) is _State.classes.get(b.site) for b in _State.bindings)
    return ours and task in getattr(module, "_fk_tasks", ())


def _trace(version: str, device: str) -> None:
    for binding in ADAPTER.select(version, device):
        owner = pkgutil.resolve_name(binding.site)
        attach.trace_calls(owner, binding.method, sites.of(binding.owner).task_of)
        _State.traced.append(owner)


def _watch_model_loading() -> None:
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader

    original = BaseModelLoader.load_model
    if getattr(original, "_fk_watched", False):
        return

    @functools.wraps(original)
    def load_model(self: Any, *args: Any, **kwargs: Any) -> Any:
        model = original(self, *args, **kwargs)
        settings = _State.settings
        assert settings is not None
        if settings.trace:
            attach.name_sites(model, _State.traced)
        planned = list(dict.fromkeys(b.task for b in _State.bindings))
        attach.model_loaded(model, settings, planned=planned, bound=_bound, shared=_State.shared)
        return model

    load_model._fk_watched = True  # type: ignore[attr-defined]
    BaseModelLoader.load_model = load_model
