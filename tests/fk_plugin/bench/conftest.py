"""One open session for all tests of a toy task, and kernels written by the test."""

import dataclasses
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fk_plugin.bench import locate
from fk_plugin.bench.child import Limits
from fk_plugin.bench.rows import Row
from fk_plugin.bench.session import Session
from fk_plugin.bench.setting import Setting

TOY = Path(__file__).with_name("toy.py")


def setting(task: str, **more: object) -> Setting:
    """A setting small enough for a unit test."""
    spec = f"{TOY}:{task}"
    found = locate.task(spec)
    values = {
        "spec": spec,
        "device": "cpu",
        "mode": "eager",
        "workloads": found.workloads[:1],
        "edge_workloads": found.edge_workloads,
        "baselines": ("reference",),
        "limits": Limits(load_s=30, call_s=3, memory=2 << 30),
        "budget_s": 0.2,
        "least": 6,
        "most": 8,
    }
    return Setting(**{**values, **more})


@pytest.fixture(scope="session")
def sessions() -> Iterator[Callable[[str], Session]]:
    opened: dict[str, Session] = {}

    def get(task: str) -> Session:
        if task not in opened:
            both = {"workloads": locate.task(f"{TOY}:SCALE").workloads} if task == "BOTH" else {}
            opened[task] = Session(setting("SCALE" if both else task, **both)).__enter__()
        return opened[task]

    yield get
    for session in opened.values():
        session.__exit__()


@pytest.fixture
def examine(sessions: Callable[[str], Session], tmp_path: Path) -> Callable[..., list[Row]]:
    """examine(code, task="SCALE", **setting fields) -> rows of the kernel in `code`; "BOTH": SCALE, two workloads."""

    def run(code: str, task: str = "SCALE", **more: object) -> list[Row]:
        file = tmp_path / f"kernel{len(list(tmp_path.iterdir()))}.py"
        file.write_text("import torch\n" + textwrap.dedent(code))
        session = sessions(task)
        return session.examine(str(file), dataclasses.replace(session.setting, **more))

    return run
