"""The function SGLang runs in every process (entry point `sglang.srt.plugins`).

SGLang logs and swallows what a plugin raises, and goes on without it. What the user must hear is therefore raised
later, from a hook inside SGLang's own start-up, where it does end the run.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from typing import Any

from fk_adapters.sglang import fallbacks, sites
from fk_adapters.sglang.bindings import ADAPTER
from fk_plugin import attach, dispatch, env, proof, registry, select
from fk_plugin.adapter import Binding, matching
from fk_plugin.errors import FkError

_LOAD_MODEL = "sglang.srt.model_executor.model_runner.ModelRunner.load_model"
_SERVER_ARGS = "sglang.srt.server_args.ServerArgs.__post_init__"


class _State:
    bindings: dict[str, Binding] = {}  # task -> row
    settings: env.Settings | None = None
    traced: list[type] = []  # the classes whose calls are counted, of this version's rows


def register() -> None:
    """Bind what the environment asks for. Without FK_KERNELS and FK_PROOF_DIR it touches nothing."""
    try:
        _register()
    except FkError as error:
        _raise_later(error)


def _register() -> None:
    settings = env.read()
    plan = select.plan(settings)
    if not plan and settings.proof_dir is None:
        return
    proof.open_folder(settings.proof_dir)
    lacking = ADAPTER.lacking()
    if lacking:
        attach.stood_down([lacking], settings)
        return
    import sglang
    from sglang.srt.utils import is_cuda

    device = "cuda" if is_cuda() else "cpu"
    if settings.trace:
        _trace(sglang.__version__, device)
    good, refused = matching(ADAPTER, plan.kernels, sglang.__version__, device)
    attach.stood_down(refused, settings)
    attach.put_in_force({b.task: plan.kernels[b.task] for b in good}, settings)
    attach.bind_by(good, lambda b: b.target, _bind, settings)
    _State.settings = settings
    proof.event("installed", engine="sglang", version=sglang.__version__, device=device, kernels=plan.fingerprint)
    _hook(_LOAD_MODEL, _model_loaded, "AFTER")


def _raise_later(error: FkError) -> None:
    proof.event("refused", message=str(error))

    def fail(*_: Any, **__: Any) -> None:
        raise error

    # The first in every parent process, the second in a scheduler that got its arguments ready-made.
    _hook(_SERVER_ARGS, fail, "BEFORE")
    _hook(_LOAD_MODEL, fail, "BEFORE")


def _hook(target: str, hook: Callable[..., Any], kind: str) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    if all(known is not hook for _, known, _ in HookRegistry._hooks.get(target, ())):
        HookRegistry.register(target, hook, HookType[kind])


def _bind(rows: list[Binding]) -> None:
    """Put one hook around one method, which all `rows` share."""
    if any(b.task in _State.bindings for b in rows):
        return
    calls = {}
    for binding in rows:
        calls[binding.task] = attach.operator_call(binding)
        dispatch.operator(registry.task(binding.task)).set_fallback(*fallbacks.of(binding))
    _hook(rows[0].target.replace(":", "."), sites.of(rows[0]).hook(calls), "AROUND")
    _State.bindings |= {b.task: b for b in rows}


def _bound(task: str, module: Any) -> bool:
    """Whether this module's dispatch reaches the hooked method: the registry may have failed to patch it."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    binding = _State.bindings.get(task)
    if binding is None or binding.target.replace(":", ".") not in HookRegistry._patched:
        return False
    owner: Any = pkgutil.resolve_name(binding.site)
    return isinstance(module, owner) and _reached(module) is owner.__dict__[binding.method]


def _reached(module: Any) -> Any:
    """The function that this operator module's next call ends in."""
    method = module._forward_method
    if hasattr(module, "_resolve_forward_method"):  # BaseFusedOp, which decides at the first call
        from sglang.kernels.fused_op import BACKEND_METHODS, get_fused_op_backend

        forced = get_fused_op_backend()
        if forced in module.available_backends():
            method = getattr(module, BACKEND_METHODS[forced])
        else:
            method = method or module._resolve_forward_method()
    return getattr(method, "__func__", None)


def _model_loaded(_result: Any, runner: Any, *_: Any, **__: Any) -> None:
    settings = _State.settings
    assert settings is not None
    if settings.trace:
        attach.name_sites(runner.model, _State.traced)
    attach.model_loaded(runner.model, settings, planned=list(_State.bindings), bound=_bound)
    if runner.server_args.enable_torch_compile:
        _decline_compiled_decode(settings)


def _decline_compiled_decode(settings: env.Settings) -> None:
    # SGLang switches every operator class to forward_native in the decode batches that it compiles; where that is not
    # the method our hook is on, nothing of ours is called there, and SGLang says nothing.
    tasks = [task for task, binding in _State.bindings.items() if binding.method != "forward_native"]
    reason = "--enable-torch-compile runs SGLang's own native code in the decode batches that it compiles"
    attach.declined(tasks, "compiled decode", reason)
    if tasks and settings.mode is env.Mode.STRICT:
        raise attach.refused(reason)


def _trace(version: str, device: str) -> None:
    for binding in ADAPTER.select(version, device):
        owner = pkgutil.resolve_name(binding.site)
        attach.trace_calls(owner, binding.method, sites.of(binding).task_of)
        _State.traced.append(owner)
