"""Several ranks (gloo): the slowest counts, every rank is judged, and the rank that fails is named."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fk_plugin import registry
from fk_plugin.bench.child import Limits
from fk_plugin.bench.session import Session
from fk_plugin.bench.setting import Setting
from fk_plugin.bench.status import Status

HEAD = """
import torch
import torch.distributed as dist

def gathered(x):
    parts = [torch.empty(x.shape, dtype=x.dtype) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.contiguous())
    return sum(p.float() for p in parts).to(x.dtype)
"""


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    task = registry.task("all_reduce")
    chosen = Setting(
        spec="all_reduce", device="cpu", mode="eager", world=2, baselines=("reference",),
        workloads=tuple(w for w in task.workloads if w.name == "smollm2-135m-decode-8"),
        edge_workloads=task.edge_workloads, limits=Limits(load_s=60, call_s=8, memory=4 << 30),
        budget_s=0.3, least=6, most=8,
    )  # fmt: skip
    with Session(chosen) as opened:
        yield opened


def examine(session: Session, folder: Path, body: str) -> tuple[Status, str]:
    """The verdict on all_reduce with this body."""
    file = folder / "kernel.py"
    file.write_text(HEAD + "def all_reduce(x, group=''):\n" + body)
    (row,) = session.examine(str(file))
    return row.verdict.status, row.verdict.reason


def test_right_sum_passes(session: Session, tmp_path: Path) -> None:
    status, reason = examine(session, tmp_path, "    return gathered(x)\n")
    assert status in (Status.OK, Status.NOISY), reason


def test_one_wrong_rank_fails(session: Session, tmp_path: Path) -> None:
    body = "    out = gathered(x)\n    return out if dist.get_rank() == 0 else out + 1\n"
    assert examine(session, tmp_path, body)[0] is Status.WRONG


def test_the_rank_that_crashes_is_named_not_the_one_that_waits(session: Session, tmp_path: Path) -> None:
    body = "    import os\n    os._exit(7) if dist.get_rank() == 1 else None\n    return gathered(x)\n"
    status, reason = examine(session, tmp_path, body)
    assert status is Status.CRASHED
    assert "rank 1: its process left with exit status 7" in reason


def test_the_slowest_rank_counts(session: Session, tmp_path: Path) -> None:
    file = tmp_path / "kernel.py"
    slow = "    import time\n    out = gathered(x)\n    time.sleep(0.02 * dist.get_rank())\n    return out\n"
    file.write_text(HEAD + "def all_reduce(x, group=''):\n" + slow)
    (row,) = session.examine(str(file))
    assert row.verdict.status in (Status.OK, Status.NOISY), row.verdict
    assert row.candidate_s is not None and row.candidate_s >= 0.02
