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
from types import ModuleType
from typing import Any

from fk_adapters.vllm import fallbacks, sites
from fk_adapters.vllm.bindings import ADAPTER
from fk_plugin import attach, dispatch, env, proof, registry, select
from fk_plugin.adapter import Binding, matching

log = logging.getLogger("fk_plugin")


class _State:
    bindings: tuple[Binding, ...] = ()
    classes: dict[str, type] = {}  # site -> our class
    settings: env.Settings | None = None


def register() -> None:
    """Bind what the environment asks for. Without FK_KERNELS and FK_PROOF_DIR it touches nothing."""
    settings = env.read()
    plan = select.plan(settings)
    if not plan and settings.proof_dir is None:
        return
    proof.open_folder(settings.proof_dir)
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
    for site in dict.fromkeys(b.site for b in good):
        _bind([b for b in good if b.site == site])
    if good:
        # vLLM reuses ahead-of-time artifacts by key, and the key knows nothing of plugins: without this a graph
        # compiled before the plugin was installed is loaded and no kernel of ours is ever called.
        vllm.envs.environment_variables["VLLM_FK_PLUGIN_FINGERPRINT"] = lambda: plan.fingerprint
    _State.bindings, _State.settings = tuple(good), settings
    proof.event("installed", engine="vllm", version=vllm.__version__, device=device, kernels=plan.fingerprint)
    _watch_model_loading()


def _slot_is_free(binding: Binding, settings: env.Settings) -> bool:
    """Registering twice is an assertion error in vLLM; another plugin's class in the slot is that plugin's."""
    held = _registry(pkgutil.resolve_name(binding.site)).op_registry_oot.get(binding.owner)
    if held is None or held is _State.classes.get(binding.site):
        return True
    attach.stood_down(
        [f"{binding.task}: {binding.owner} is already replaced by {held.__module__}.{held.__qualname__}"], settings
    )
    return False


def _registry(in_tree: type) -> ModuleType:
    """The module that replaces this class: 0.32 has a second CustomOp, with a register of its own."""
    return sys.modules[next(c for c in in_tree.__mro__ if c.__name__ == "CustomOp").__module__]


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
            if site.declines(config):
                return bool(super().enabled())
            return f"-{cls.name}" not in config.custom_ops

        def dispatch_forward(self, *args: Any, **kwargs: Any) -> Any:
            """Where the site declines, vLLM's own method instead of ours; the graph then stays what it was.

            The same where the user refuses: vLLM then takes forward_native, which at some sites is the one we replace.
            """
            reason = site.declines(get_cached_compilation_config())
            chosen = super().dispatch_forward(*args, **kwargs)
            if reason is not None:
                attach.declined(list(calls), row.owner, reason)
            elif self._enforce_enable or self.enabled():
                return chosen
            ours = getattr(chosen, "__func__", None) is Replacement.__dict__[row.method]
            return functools.partial(own, self) if ours else chosen

    setattr(Replacement, row.method, site.method(calls, own))
    Replacement.__name__ = Replacement.__qualname__ = f"Fk{in_tree.__name__}"
    return Replacement


def _bound(task: str, module: Any) -> bool:
    """Whether this module is ours and its dispatch reaches our method (custom_ops may have refused it)."""
    for binding in _State.bindings:
        ours = _State.classes.get(binding.site)
        if binding.task == task and type(module) is ours:
            reached: Any = getattr(module._forward_method, "__func__", None)
            return reached is ours.__dict__[binding.method]
    return False


def _trace(version: str, device: str) -> None:
    for binding in ADAPTER.select(version, device):
        attach.trace_calls(pkgutil.resolve_name(binding.site), binding.method, sites.of(binding.owner).task_of)


def _owners() -> list[type]:
    return [pkgutil.resolve_name(site) for site in dict.fromkeys(b.site for b in ADAPTER.bindings)]


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
            attach.name_sites(model, _owners())
        attach.model_loaded(model, settings, planned=list(dict.fromkeys(b.task for b in _State.bindings)), bound=_bound)
        return model

    load_model._fk_watched = True  # type: ignore[attr-defined]
    BaseModelLoader.load_model = load_model
