"""Every known cheat is caught by its intended status and check, and no honest kernel is accused (CPU)."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fk_plugin import registry
from fk_plugin.bench.checks import Checks
from fk_plugin.bench.child import Limits
from fk_plugin.bench.rows import Row
from fk_plugin.bench.session import Session
from fk_plugin.bench.setting import Setting
from fk_plugin.bench.status import Status

sys.path.insert(0, str(Path(__file__).resolve().parent))
import cheat_files

CHEATS = cheat_files.load("cheats", "cpu")
HONEST = cheat_files.load("honest", "cpu")
# Of the 41 hacks, those that exist on a GPU only; integration_tests/gpu/run_bench.py has them.
GPU_ONLY = {1, 6, 8, 16, 39}


class Lab:
    """One open session per task, shared by all cases."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.target = folder / "tolerances.py"
        self.target.write_text("TOLERANCE = 1e-3\n")
        self._sessions: dict[str, Session] = {}

    def examine(self, case: cheat_files.Case, disabled: frozenset[str], folder: Path) -> Row:
        """The row of one case, with some checks off."""
        session = self._session(case.task)
        self.target.write_text("TOLERANCE = 1e-3\n")
        setting = dataclasses.replace(session.setting, checks=Checks(disabled))
        environ = {"FK_CHEAT_DIR": str(folder), "FK_CHEAT_TARGET": str(self.target)}
        (row,) = session.examine(str(case.file), setting, environ)
        return row

    def _session(self, name: str) -> Session:
        if name not in self._sessions:
            task = registry.task(name)
            setting = Setting(
                spec=name,
                device="cpu",
                mode="eager",
                workloads=tuple(w for w in task.workloads if w.name == cheat_files.WORKLOADS[name]),
                edge_workloads=task.edge_workloads,
                baselines=("reference",),
                limits=Limits(load_s=60, call_s=20, memory=4 << 30),
                budget_s=0.3,
                least=8,
                most=12,
            )
            self._sessions[name] = Session(setting, protected=(self.target,)).__enter__()
        return self._sessions[name]

    def close(self) -> None:
        """End every process."""
        for session in self._sessions.values():
            session.__exit__()


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    found = Lab(tmp_path_factory.mktemp("lab"))
    yield found
    found.close()


@pytest.mark.parametrize("case", CHEATS, ids=lambda c: c.name)
def test_cheat_is_caught_by_its_status(case: cheat_files.Case, lab: Lab, tmp_path: Path) -> None:
    row = lab.examine(case, frozenset(), tmp_path)
    assert row.verdict.status is case.status, row.verdict
    assert row.ratio is None, "a failure is never a speedup"


@pytest.mark.parametrize("case", CHEATS, ids=lambda c: c.name)
def test_cheat_passes_without_the_check_that_catches_it(case: cheat_files.Case, lab: Lab, tmp_path: Path) -> None:
    # The second opinion stands behind every check: it may catch by its effect what the check caught by its nature.
    row = lab.examine(case, case.by | {"parent_clock"}, tmp_path)
    wanted = {case.without, Status.NOISY} if case.without is Status.OK else {case.without}
    assert row.verdict.status in wanted, row.verdict


@pytest.mark.parametrize("case", HONEST, ids=lambda c: c.name)
def test_honest_kernel_is_not_accused(case: cheat_files.Case, lab: Lab, tmp_path: Path) -> None:
    row = lab.examine(case, frozenset(), tmp_path)
    assert row.verdict.status in (Status.OK, Status.NOISY), row.verdict


def test_every_known_hack_has_a_cheat() -> None:
    covered = {hack for case in (*CHEATS, *cheat_files.load("cheats", "cuda")) for hack in case.hacks}
    assert covered | GPU_ONLY == set(range(1, 42))
