"""all_reduce and row_parallel_linear in two gloo ranks, and without any."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fk_plugin import registry
from fk_plugin.dispatch import operator

RANK = """
import sys, torch, torch.distributed as dist
import torch.nn.functional as F
from fk_plugin import registry
from fk_plugin.dispatch import operator

torch.set_num_threads(1)
rank, ranks = int(sys.argv[1]), 2
dist.init_process_group("gloo", store=dist.FileStore(sys.argv[2], ranks), rank=rank, world_size=ranks)


def gathered(tensor):
    parts = [torch.empty_like(tensor) for _ in range(ranks)]
    dist.all_gather(parts, tensor.contiguous())
    return [p.double() for p in parts]


def check(task, exact, expected):
    error = float((exact.double() - expected).norm() / expected.norm().clamp(min=1e-30))
    assert error < 2 ** -7, (task.name, error)
    wrong = registry.kernel(task.name, "canary").fn(*args)
    error = float((wrong.double() - expected).norm() / expected.norm().clamp(min=1e-30))
    assert error > 0.1 or not expected.numel(), (task.name, "the canary passed", error)


for name in ("all_reduce", "row_parallel_linear"):
    task = registry.task(name)
    operator(task)
    for workload in task.edge_workloads:
        args = task.make_inputs(workload, "cpu", 3)
        result = getattr(torch.ops.fk, name)(*args)
        if name == "all_reduce":
            expected = sum(gathered(args[0]))
        else:
            x, weight, bias = args
            expected = F.linear(torch.cat(gathered(x), 1), torch.cat(gathered(weight), 1))
            expected = expected if bias is None else expected + bias.double()
        check(task, result, expected)
        same = gathered(result)
        assert torch.equal(same[0], same[1]), "every rank must hold the same bits"
dist.destroy_process_group()
print("done")
"""


def test_two_ranks(tmp_path: Path):
    command = [sys.executable, "-c", RANK]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "store")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    try:
        outputs = [rank.communicate(timeout=60) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for rank, (out, error) in zip(ranks, outputs, strict=True):
        assert rank.returncode == 0, error
        assert "done" in out


@pytest.mark.parametrize("name", ["all_reduce", "row_parallel_linear"])
def test_without_a_group_it_says_what_to_do(name):
    task = registry.task(name)
    operator(task)
    args = task.make_inputs(task.edge_workloads[1], "cpu", 0)
    with pytest.raises(RuntimeError, match="init_process_group"):
        getattr(torch.ops.fk, name)(*args)


def test_uneven_shares_are_refused(monkeypatch):
    task = registry.task("row_parallel_linear")
    monkeypatch.setattr("fk_tasks.collective._place", lambda default: (0, 7))
    with pytest.raises(ValueError, match="shared out evenly"):
        task.make_inputs(next(w for w in task.edge_workloads if w.axes["k"] == 64), "cpu", 0)


def test_cost_is_that_of_one_rank(monkeypatch):
    task = registry.task("row_parallel_linear")
    workload = task.workloads[0]
    alone = task.cost(workload)
    monkeypatch.setattr("fk_tasks.collective._place", lambda default: (0, 2))
    assert task.cost(workload).flops == 4 * alone.flops, "without a group the cost assumes 8 ranks"
