"""The function vLLM runs in every process (entry point `vllm.general_plugins`).

An exception here kills the engine, so it raises only for what the user must hear: a name in FK_KERNELS that does not
exist, and strict mode. vLLM runs it once per process, but a forked child inherits the result; a second run changes
nothing.
"""

from __future__ import annotations

import functools
import logging
import pkgutil
from typing import Any

from fk_adapters.vllm import fallbacks
from fk_adapters.vllm.bindings import ADAPTER
from fk_plugin import attach, env, proof, select
from fk_plugin.adapter import Binding, matching

log = logging.getLogger("fk_plugin")


class _State:
    bindings: tuple[Binding, ...] = ()
    classes: dict[str, type] = {}  # task -> our class
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
    for binding in good:
        _bind(binding)
    if good:
        # vLLM reuses ahead-of-time artifacts by key, and the key knows nothing of plugins: without this a graph
        # compiled before the plugin was installed is loaded and no kernel of ours is ever called.
        vllm.envs.environment_variables["VLLM_FK_PLUGIN_FINGERPRINT"] = lambda: plan.fingerprint
    _State.bindings, _State.settings = tuple(good), settings
    proof.event("installed", engine="vllm", version=vllm.__version__, device=device, kernels=plan.fingerprint)
    _watch_model_loading()


def _slot_is_free(binding: Binding, settings: env.Settings) -> bool:
    """Registering twice is an assertion error in vLLM; another plugin's class in the slot is that plugin's."""
    from vllm.model_executor.custom_op import op_registry_oot

    held = op_registry_oot.get(binding.owner)
    if held is None or held is _State.classes.get(binding.task):
        return True
    attach.stood_down(
        [f"{binding.task}: {binding.owner} is already replaced by {held.__module__}.{held.__qualname__}"], settings
    )
    return False


def _bind(binding: Binding) -> None:
    if binding.task in _State.classes:
        return
    from vllm.model_executor.custom_op import CustomOp

    in_tree: Any = pkgutil.resolve_name(f"{binding.module}:{binding.owner}")
    name, fallback = fallbacks.of(binding)
    replacement = _replacement(in_tree, binding)
    _operator(binding).set_fallback(name, fallback)
    in_tree_name = in_tree.name
    CustomOp.register_oot(replacement, name=binding.owner)
    # register_oot writes the class name over the operator's name, and "+silu_and_mul" would no longer mean it.
    replacement.name = in_tree_name
    _State.classes[binding.task] = replacement


def _operator(binding: Binding) -> Any:
    from fk_plugin import dispatch, registry

    return dispatch.operator(registry.task(binding.task))


def _replacement(in_tree: Any, binding: Binding) -> Any:
    """A subclass of the engine's class whose method for this device calls our operator."""
    import torch
    from vllm.config import get_cached_compilation_config

    _operator(binding)
    operator = getattr(torch.ops.fk, binding.task)
    arguments = dict(binding.arguments)

    class Replacement(in_tree):
        @classmethod
        def enabled(cls) -> bool:
            # Under Inductor custom_ops defaults to "none", which means the engine's generic code; the user can
            # still refuse by name.
            return f"-{cls.name}" not in get_cached_compilation_config().custom_ops

    def forward(self: Any, x: Any) -> Any:
        return operator(x, **arguments)

    setattr(Replacement, binding.method, forward)
    Replacement.__name__ = Replacement.__qualname__ = f"Fk{in_tree.__name__}"
    return Replacement


def _bound(task: str, module: Any) -> bool:
    """Whether this module is ours and its dispatch reaches our method (custom_ops may have refused it)."""
    ours = _State.classes.get(task)
    if ours is None or type(module) is not ours:
        return False
    method = next(b.method for b in _State.bindings if b.task == task)
    reached: Any = getattr(module._forward_method, "__func__", None)
    return reached is ours.__dict__[method]


def _trace(version: str, device: str) -> None:
    for binding in ADAPTER.select(version, device):
        owner: Any = pkgutil.resolve_name(f"{binding.module}:{binding.owner}")
        attach.trace_calls(binding.task, owner, binding.method)


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
            attach.name_sites(model, [pkgutil.resolve_name(f"{b.module}:{b.owner}") for b in ADAPTER.bindings])
        attach.model_loaded(model, settings, planned=[b.task for b in _State.bindings], bound=_bound)
        return model

    load_model._fk_watched = True  # type: ignore[attr-defined]
    BaseModelLoader.load_model = load_model
