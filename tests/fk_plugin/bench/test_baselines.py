"""A baseline that fails or dawdles is left out by name, and the others set the pace."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fk_plugin.bench.child import Nursery, _sweep
from fk_plugin.bench.session import Session
from fk_plugin.errors import UsageError

HERE = Path(__file__).parent


def test_baselines_that_fail_are_left_out_by_name(sessions: Callable[[str], Session]) -> None:
    names = ("dies", "dawdles", "reference")
    chosen = replace(sessions("SCALE").setting, spec=f"{HERE / 'toy.py'}:BASELINES", baselines=names)
    with Session(chosen) as session:
        (row,) = session.examine(f"{HERE / 'good.py'}:scale")
        found = session.wrong_baselines | session.missing
    assert row.baseline == "reference" and row.candidate_s is not None, row.verdict
    assert "exit status 7" in found["dies on w64"] and "no answer within 3 s" in found["dawdles on w64"]


def test_baseline_that_dies_while_loading_is_named(sessions: Callable[[str], Session]) -> None:
    names = ("dies at load", "reference")
    chosen = replace(sessions("SCALE").setting, spec=f"{HERE / 'toy.py'}:BASELINES", baselines=names)
    with pytest.raises(UsageError, match=r"baseline dies at load ended its process while loading .*status 7"):
        Session(chosen).__enter__()


def test_folders_of_killed_runs_are_removed_and_live_ones_kept(tmp_path: Path) -> None:
    with Nursery() as living:
        folder = living._folder
        dead = folder.parent / "fk-bench-of-a-killed-run"
        dead.mkdir(exist_ok=True)
        (dead / "owner").touch()
        _sweep(folder.parent)
        assert folder.is_dir() and not dead.exists()
    assert not folder.exists()
