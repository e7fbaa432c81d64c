"""Fixtures for tests that start real engines."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from engine_support import Run, fk

from fk_plugin.e2e import models


@pytest.fixture(scope="session")
def e2e(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    """Run `fk e2e` with --json."""

    def run(*arguments: str) -> Run:
        folder = tmp_path_factory.mktemp("e2e")
        out = folder / "result.json"
        done = fk("e2e", *arguments, "--json", str(out), "--keep", str(folder))
        return Run(done.status, json.loads(out.read_text()) if out.exists() else {}, done.output)

    return run


@pytest.fixture(scope="session")
def tiny() -> Path:
    """A generated Llama of four layers."""
    return models.resolve("dummy:tiny-llama", print)
