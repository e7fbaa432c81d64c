"""Test sessions; `scripts/test` runs them. Environments come from scripts/environments.py, outside the clone."""

import sys
import tempfile
from pathlib import Path

import nox

ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT / "scripts"))
import environments  # noqa: E402

nox.options.default_venv_backend = "none"
nox.options.sessions = ["lint", "unit", "packaging", "cheats", "engines"]


def _pytest(session: nox.Session, python: str, folder: str, *args: str) -> None:
    # From outside the root: there, `kernels/` would be importable as a namespace package.
    with tempfile.TemporaryDirectory() as outside, session.chdir(outside):
        session.run(python, "-m", "pytest", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml"),
                    str(ROOT / folder), *args, *session.posargs, external=True)  # fmt: skip


@nox.session
def lint(session: nox.Session) -> None:
    """Ruff and mypy."""
    python = environments.base("lint")
    session.run(python, "-m", "ruff", "check", ".", external=True)
    session.run(python, "-m", "ruff", "format", "--check", ".", external=True)
    session.run(python, "-m", "mypy", external=True)


@nox.session
def unit(session: nox.Session) -> None:
    """Unit tests against the installed wheel, with torch and both engines importable."""
    _pytest(session, environments.overlay("engines-cpu", "wheel"), "tests", "--durations=5")


@nox.session
def packaging(session: nox.Session) -> None:
    """Wheel and editable installs side by side."""
    _pytest(session, environments.overlay("engines-cpu", "wheel"), "integration_tests/packaging")


@nox.session
def cheats(session: nox.Session) -> None:
    """The sandbox against known cheats and honest kernels."""
    session.env["OMP_NUM_THREADS"] = "1"  # two cores, and each examination has two processes that compute
    _pytest(session, environments.overlay("engines-cpu", "wheel"), "integration_tests/test_cheats.py")


@nox.session
def engines(session: nox.Session) -> None:
    """Both real engines, end to end."""
    python = environments.overlay("engines-cpu", "wheel")
    _pytest(session, python, "integration_tests/engines", "-m", "engine and not long", "-v", "--durations=0")


@nox.session
def engines_long(session: nox.Session) -> None:
    """The long matrix."""
    python = environments.overlay("engines-cpu", "wheel")
    _pytest(session, python, "integration_tests/engines", "-m", "engine and long", "-v", "--durations=0")


@nox.session
def engines_newest(session: nox.Session) -> None:
    """The newest engines, each in an environment of its own: sites, native code bit for bit, and real engines."""
    session.env["SGLANG_USE_CPU_ENGINE"] = "1"  # without it SGLang takes no device at all, and looks for vLLM
    for recipe in ("vllm-newest-cpu", "sglang-newest-cpu"):
        python = environments.overlay(recipe, "wheel")
        for folder in ("tests/fk_adapters", "tests/engines_native"):
            _pytest(session, python, folder, "-q")
        _pytest(session, python, "integration_tests/engines", "-m", "newest", "-v", "--durations=0")
