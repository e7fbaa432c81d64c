"""What stays the same over one `fk bench`: task, device, mode, checks and limits."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from fk_plugin.bench import locate
from fk_plugin.bench.checks import Checks
from fk_plugin.bench.child import Limits
from fk_plugin.errors import UsageError
from fk_plugin.task import Task, Workload

MODES = ("graph", "eager", "compile")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The request, validated.

    Attributes:
        spec: the task's name, or FILE.py:TASK.
        device: cpu or cuda.
        mode: graph (CUDA only), eager or compile.
        workloads: those that are timed.
        world: ranks.
        budget_s: seconds of timing per workload.
        noise: widest half interval that is still called a number.
        repeats: calls beyond the first that must give equal bits.
        hidden: how many workloads with unnamed row counts are tried.
    """

    spec: str
    device: str
    mode: str
    workloads: tuple[Workload, ...]
    edge_workloads: tuple[Workload, ...] = ()
    baselines: tuple[str, ...] = ()
    checks: Checks = field(default_factory=Checks)
    limits: Limits = field(default_factory=Limits)
    world: int = 1
    budget_s: float = 6.0
    least: int = 10
    most: int = 60
    noise: float = 0.1  # a shared CPU's samples spread; on a GPU an interval this wide means that clocks moved
    repeats: int = 3
    hidden: int = 2

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise UsageError(f"--mode must be one of {', '.join(MODES)}, got {self.mode!r}.")
        if self.device not in ("cpu", "cuda"):
            raise UsageError(f"--device must be cpu or cuda, got {self.device!r}.")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise UsageError("--device cuda needs an NVIDIA GPU, and none is visible; use --device cpu.")
        if self.device == "cpu" and self.mode == "graph":
            raise UsageError("--mode graph times CUDA graphs, which a CPU does not have; use --mode eager or compile.")
        if self.mode == "compile" and self.task.region is None:
            raise UsageError(f"--mode compile needs the operator's neighbours, and task {self.task.name} names none.")
        if self.world < self.task.world_size:
            raise UsageError(f"task {self.task.name} needs {self.task.world_size} ranks or more; say so with --gpus.")
        if self.world > 1 and self.task.world_size == 1:
            raise UsageError(f"task {self.task.name} runs on one rank; leave --gpus out.")
        if self.device == "cuda" and self.world > torch.cuda.device_count():
            raise UsageError(f"--gpus {self.world} asks for more GPUs than the {torch.cuda.device_count()} visible.")

    @property
    def task(self) -> Task:
        """The task itself."""
        return locate.task(self.spec)
