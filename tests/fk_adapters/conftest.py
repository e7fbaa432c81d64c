"""Plugins change classes of an engine for good, so each test runs a script in a process of its own."""

import os
import subprocess
import sys
from collections.abc import Callable

import pytest


@pytest.fixture
def run() -> Callable[..., str]:
    """(code, **environment) -> what the script printed; it must end well."""

    def go(code: str, **variables: str) -> str:
        base = {k: v for k, v in os.environ.items() if not k.startswith("FK_") or k == "FK_CACHE_DIR"}
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env={**base, **variables}, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr[-3000:]
        return done.stdout + done.stderr

    return go
