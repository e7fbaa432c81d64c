"""Helpers for tests that start real engines. They run from outside the clone, against the installed plugin."""

import os
import pkgutil
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fk_plugin import proof, registry
from fk_plugin.counters import read_events, read_folder
from fk_plugin.e2e.client import Engine
from fk_plugin.e2e.protocol import Options

FK = Path(sys.executable).with_name("fk")

# Every task that both engines have a site for in a Llama, and the calls of each in one forward of dummy:tiny-llama.
KERNELS = "silu_and_mul=cpu_fused,rms_norm=cpu_rows,fused_add_rms_norm=cpu_rows,rotary_embedding=cpu_pairs"
SITES = {"silu_and_mul": 4, "rms_norm": 1, "fused_add_rms_norm": 8, "rotary_embedding": 4}
# vLLM's engine core in the process that asks: a start costs a third.
IN_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}


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


def forced_compilation(folder: Path) -> dict[str, str]:
    """The environment in which vLLM loads the plugin of forced_compilation.py, which is put into `folder`."""
    info = folder / "fk_test_force-1.0.dist-info"
    info.mkdir(parents=True)
    shutil.copy(Path(__file__).with_name("forced_compilation.py"), folder / "fk_test_force.py")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fk-test-force\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[vllm.general_plugins]\nfk_test_force = fk_test_force:force\n")
    return {"PYTHONPATH": str(folder)}


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
        rounding = row["rounding"]["mean"] if row["rounding"] else 0.0
        assert row["passed"] and row["mean"] <= max(2.5 * max(row["floor"]["mean"], 0.001), 1.5 * rounding), row


def assert_calls(folder: Path, *expected: dict[str, int]) -> None:
    """The processes that hold a model and wrote into `folder` called these tasks so often a forward, by kernels alone.

    One of `expected` for each process, in any order.
    """
    counts = read_folder(folder)
    called = []
    for event in read_events(folder):
        if event["event"] == "model":
            mine = counts[event["pid"]]
            forwards, usage = proof.forwards(mine), proof.usage(mine)
            assert forwards > 3
            assert not any(used.fallbacks for used in usage.values()), usage
            called.append({task: used.seen / forwards for task, used in sorted(usage.items())})
    assert sorted(called, key=str) == sorted((dict(sorted(calls.items())) for calls in expected), key=str)


def kernels_by_task(folder: Path) -> dict[str, set[str]]:
    """Which kernels any process that wrote into `folder` called."""
    called: dict[str, set[str]] = {}
    for counts in read_folder(folder).values():
        for task, used in proof.usage(counts).items():
            called.setdefault(task, set()).update(used.calls)
    return called


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
