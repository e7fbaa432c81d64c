"""Every environment variable of the product, typed, in one place.

Engines spawn and fork processes; the environment is the only configuration that reaches all of them, so the plugin
side is configured by variables alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from fk_plugin.errors import UsageError


class Mode(str, Enum):
    """What the plugin may do in an engine process."""

    OFF = "off"  # touch nothing
    AUTO = "auto"  # bind what is named or proven; on any doubt stand down and say so in one line
    STRICT = "strict"  # as auto, but "not bound", "never called" and "kernel error" fail the run


@dataclass(frozen=True, kw_only=True)
class Variable:
    """One environment variable: its name, its default as the user would write it, and what it does."""

    name: str
    default: str
    meaning: str


VARIABLES = (
    Variable(
        name="FK_PLUGIN",
        default="auto",
        meaning="off: touch nothing. auto: bind what FK_KERNELS names (later also what records prove). "
        "strict: as auto, but a kernel that is not bound, never called or fails ends the run.",
    ),
    Variable(
        name="FK_KERNELS",
        default="",
        meaning="comma-separated choices: task=kernel, task=FILE.py:function, or -task to keep a task out",
    ),
    Variable(
        name="FK_PROOF_DIR",
        default="",
        meaning="folder where every engine process writes its counters and events (`fk e2e` sets it)",
    ),
    Variable(
        name="FK_TRACE",
        default="0",
        meaning="1: count the engine's own calls at every bindable site; needs FK_PLUGIN=off and FK_PROOF_DIR",
    ),
    Variable(
        name="FK_DEVICE_COUNTERS",
        default="0",
        meaning="1: also count on the GPU, so that CUDA-graph replays count; slows the engine; needs FK_PROOF_DIR",
    ),
    Variable(
        name="FK_COMPILED",
        default="measured",
        meaning="measured: leave a site to the engine's compiler where records say that it is faster there. "
        "bind: bind it all the same (`fk e2e` does, since it is asked to measure)",
    ),
    Variable(
        name="FK_CACHE_DIR",
        default="~/.cache/fk-plugin",
        meaning="folder for converted models and compiled CPU kernels",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The variables, parsed. `proof_dir` is None when nothing is to be written."""

    mode: Mode
    kernels: str
    proof_dir: Path | None
    trace: bool
    device_counters: bool
    cache_dir: Path
    bind_compiled: bool = False


def read(environ: Mapping[str, str] | None = None) -> Settings:
    """Parse the variables of `environ` (default: the process's).

    Raises:
        UsageError: a variable holds a value outside its set.
    """
    env = os.environ if environ is None else environ
    values = {v.name: env.get(v.name, "").strip() or v.default for v in VARIABLES}
    mode = values["FK_PLUGIN"].lower()
    if mode not in {m.value for m in Mode}:
        raise UsageError(f"FK_PLUGIN must be off, auto or strict, but is {mode!r}; unset it for auto.")
    for name in ("FK_TRACE", "FK_DEVICE_COUNTERS"):
        if values[name] not in ("0", "1"):
            raise UsageError(f"{name} must be 0 or 1, but is {values[name]!r}; unset it for 0.")
    if values["FK_COMPILED"] not in ("measured", "bind"):
        raise UsageError(
            f"FK_COMPILED must be measured or bind, but is {values['FK_COMPILED']!r}; unset it for measured."
        )
    trace, on_device = values["FK_TRACE"] == "1", values["FK_DEVICE_COUNTERS"] == "1"
    proof = values["FK_PROOF_DIR"]
    if on_device and not proof:
        raise UsageError("FK_DEVICE_COUNTERS=1 needs FK_PROOF_DIR, which is unset; set it to a folder to write into.")
    if trace and (mode != "off" or not proof):
        raise UsageError(
            "FK_TRACE=1 counts the engine's own calls, so it needs FK_PLUGIN=off and FK_PROOF_DIR; "
            f"FK_PLUGIN is {mode} and FK_PROOF_DIR is {proof or 'unset'}."
        )
    return Settings(
        mode=Mode(mode),
        kernels=values["FK_KERNELS"],
        proof_dir=Path(proof) if proof else None,
        trace=trace,
        device_counters=on_device,
        cache_dir=Path(values["FK_CACHE_DIR"]).expanduser(),
        bind_compiled=values["FK_COMPILED"] == "bind",
    )
