"""Helpers for tests that start real engines. They run from outside the clone, against the installed plugin."""

import os
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fk_plugin import proof, registry
from fk_plugin.e2e.client import Engine
from fk_plugin.e2e.protocol import Options

FK = Path(sys.executable).with_name("fk")


@dataclass(frozen=True)
class Run:
    """One `fk` command: exit status, its JSON if it wrote one, and what it printed."""

    status: int
    data: dict[str, Any]
    output: str

    def check(self, name: str) -> dict[str, Any]:
        """The check called `name`."""
        return next(c for c in self.data["checks"] if c["name"] == name)


def fk(*arguments: str, **environment: str) -> Run:
    """Run `fk`; what it prints goes to the test's output as well."""
    done = subprocess.run(
        [FK, *arguments], capture_output=True, text=True, env={**os.environ, **environment}, check=False, timeout=1500
    )
    output = done.stdout + done.stderr
    print(output)
    return Run(done.returncode, {}, output)


@contextmanager
def engine(name: str, model: Path, folder: Path, *, eager: bool = True, **environment: str) -> Iterator[Engine]:
    """One engine start on a small model."""
    base = pkgutil.resolve_name(registry.adapter(name).launcher).environment("cpu")
    options = Options(
        model=str(model), dtype="bfloat16", max_model_len=256, max_batched_tokens=256, max_sequences=16, eager=eager
    )
    with Engine(
        name,
        options,
        {**base, **environment},
        folder,
        label=name,
        progress=lambda _: None,
        start_limit=400,
        answer_limit=120,
    ) as started:
        yield started


def assert_proofs(run: Run, **sites: int) -> None:
    """Recompute from the raw counts what the run claims: calls = sites x forwards, nothing when off.

    `sites` are the calls in one forward, by task.
    """
    assert run.status == 0, run.output
    assert run.data["passed"] is True
    assert {task: run.data["sites_per_forward"][task] for task in sites} == sites
    for start in run.data["plugged"]:
        assert start["processes"], "no process reported for itself"
        for process in start["processes"]:
            assert process["bound"].keys() == sites.keys() and all(process["bound"].values()), process["bound"]
            assert process["forwards"] > 10
            assert process["seen"] == {task: count * process["forwards"] for task, count in sites.items()}
    for start in run.data["baseline"]:
        assert [p["seen"] for p in start["processes"]] == [{}]
        assert all(p["forwards"] > 10 for p in start["processes"])
    for task in sites:
        canary = run.check(f"canary, {task}")
        assert canary["passed"] and f"the wrong {task} is refused" in canary["detail"]
    for row in run.data["accuracy"]:
        assert row["passed"] and row["mean"] <= 2.5 * max(row["floor"]["mean"], 0.001), row


def assert_calls(started: Engine, **sites: int) -> None:
    """Every process that holds the model called each task `sites[task]` times a forward, by its kernel alone."""
    counts = started.counts()
    models = [event for event in started.events() if event["event"] == "model"]
    assert models, "no process reported a model"
    for event in models:
        mine = counts[event["pid"]]
        forwards, usage = proof.forwards(mine), proof.usage(mine)
        assert forwards > 3
        assert {task: used.seen for task, used in usage.items()} == {task: n * forwards for task, n in sites.items()}
        assert not any(used.fallbacks for used in usage.values()), usage


WRONG_BY_TEN_PERCENT = """
import torch
import torch.nn.functional as F

def silu_and_mul(x, round_activation=True):
    half = x.shape[-1] // 2
    # 10 % on every second element: a norm behind it does not cancel it
    scale = torch.ones(half, dtype=x.dtype)
    scale[::2] = 1.10
    return F.silu(x[..., :half]) * x[..., half:] * scale
"""

WRONG_WHILE_TIMED = """
import torch
import torch.nn.functional as F

calls = 0

def silu_and_mul(x, round_activation=True):
    # 30 sites; one untimed and one timed pass of at least 8 forwards each come before anything is judged
    global calls
    calls += 1
    half = x.shape[-1] // 2
    if calls < 400:
        return x[..., :half] * F.silu(x[..., half:])
    return F.silu(x[..., :half]) * x[..., half:]
"""

NEVER_MATCHES = """
from fk_plugin.kernel import Requires, kernel

@kernel("silu_and_mul", requires=Requires(device="cpu", dtypes=("bfloat16",)), guard=lambda x, *_: "never mind")
def silu_and_mul(x, round_activation=True):
    return x
"""

RAISES = """
def silu_and_mul(x, round_activation=True):
    raise ArithmeticError("planted")
"""
