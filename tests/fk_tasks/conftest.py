"""Shared by the tests of the tasks."""

import pytest
import torch.distributed as dist

from fk_plugin import registry


@pytest.fixture(scope="module")
def one_rank():
    """A gloo group of this process alone, for the operators that sum over ranks."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def edge():
    """(task, name without "edge-") -> (task, the arguments of that edge workload)."""

    def make(task_name: str, name: str, seed: int = 0):
        task = registry.task(task_name)
        workload = next(w for w in task.edge_workloads if w.name == f"edge-{name}")
        return task, task.make_inputs(workload, "cpu", seed)

    return make
