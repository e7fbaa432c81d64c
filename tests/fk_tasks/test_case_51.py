"""Case 51: sizes so small that a launch decided, or so large that memory ran out (KernelBench#40, #146).

Each task has a workload that keeps a GPU busy longer than a launch takes, and none that does not fit beside its copies.
"""

import pytest

from fk_plugin import registry

# NVIDIA's data sheet of the H200: 4.8 TB/s and 989 dense TFLOP/s in bfloat16.
BYTES_PER_S, FLOPS_PER_S = 4.8e12, 989e12
LAUNCH_S = 2e-6
# Inputs, their copies at fresh addresses, results and a float64 oracle must fit into 80 GB.
MOST_BYTES = 4 << 30


def _floor_s(task, workload) -> float:
    cost = task.cost(workload)
    return max(cost.bytes / BYTES_PER_S, cost.flops / FLOPS_PER_S)


@pytest.mark.parametrize("task", registry.tasks().values(), ids=lambda t: t.name)
def test_case_51_some_workload_is_not_bound_by_its_launch(task):
    longest = max(_floor_s(task, workload) for workload in task.workloads)
    assert longest > 2 * LAUNCH_S, f"{task.name}: its largest workload needs {longest * 1e6:.2f} us"


@pytest.mark.parametrize("task", registry.tasks().values(), ids=lambda t: t.name)
def test_case_51_every_workload_fits(task):
    for workload in task.workloads:
        assert task.cost(workload).bytes < MOST_BYTES, f"{task.name} {workload.name}"
