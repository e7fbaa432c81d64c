"""Finding tasks and kernels; loading a stranger's file; the sentences for wrong names."""

from pathlib import Path

import pytest

from fk_plugin import env, registry, select
from fk_plugin.errors import UsageError

_PLAIN = "def silu_and_mul(x, round_activation=True):\n    return x[..., : x.shape[-1] // 2]\n"
_DECORATED = """
from fk_plugin.kernel import Requires, kernel

@kernel("{task}", requires=Requires(device="cpu", dtypes=("float32",)))
def mine(x, round_activation=True):
    return x
"""


def _plan(text: str, mode: str = "auto") -> select.Plan:
    return select.plan(env.read({"FK_KERNELS": text, "FK_PLUGIN": mode}))


def test_shipped_tasks_and_kernels_are_found() -> None:
    assert "silu_and_mul" in registry.tasks()
    found, missing = registry.kernels("silu_and_mul")
    assert {"cpu_fused", "triton_rows", "canary"} <= set(found)
    assert missing == ()
    assert found["canary"].wrong_on_purpose and not found["cpu_fused"].wrong_on_purpose


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("silu_and_mull=x", "no task called 'silu_and_mull'; did you mean silu_and_mul"),
        ("silu_and_mul=cpu_fusd", "no kernel of silu_and_mul called 'cpu_fusd'; did you mean cpu_fused"),
        ("-rms_nrm", "no task called 'rms_nrm'"),
        ("silu_and_mul", "expects task=kernel or -task, got 'silu_and_mul'"),
        ("silu_and_mul=", "expects task=kernel or -task"),
        ("silu_and_mul=canary,silu_and_mul=cpu_fused", "names silu_and_mul twice"),
        ("silu_and_mul=canary,-silu_and_mul", "both names and excludes silu_and_mul"),
        ("silu_and_mul=/nowhere/x.py", "is no file"),
    ],
)
def test_wrong_choices_are_refused_with_the_nearest(text: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        _plan(text)


def test_off_and_empty_put_nothing_in_force() -> None:
    assert not _plan("")
    assert not _plan("silu_and_mul=cpu_fused", "off")
    assert not _plan("-silu_and_mul")


def test_a_plan_and_its_fingerprint() -> None:
    plan = _plan("silu_and_mul=cpu_fused")
    assert plan.kernels["silu_and_mul"].name == "cpu_fused"
    assert plan.fingerprint == f"silu_and_mul=cpu_fused@{plan.kernels['silu_and_mul'].source}"
    assert len(plan.kernels["silu_and_mul"].source) == 12


def test_a_plain_function_in_a_file_is_a_candidate(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(_PLAIN)
    kernel = _plan(f"silu_and_mul={path}").kernels["silu_and_mul"]
    assert (kernel.name, kernel.requires.device) == ("mine:silu_and_mul", "any")


def test_a_decorated_kernel_keeps_its_requirements(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(_DECORATED.format(task="silu_and_mul"))
    kernel = registry.kernel("silu_and_mul", f"{path}:mine")
    assert (kernel.requires.device, kernel.requires.dtypes) == ("cpu", ("float32",))


@pytest.mark.parametrize(
    ("text", "name", "sentence"),
    [
        ("def f(:\n", "silu_and_mul", "cannot be loaded: SyntaxError"),
        ("import not_there_at_all\n", "silu_and_mul", "cannot be loaded: ModuleNotFoundError"),
        ("x = 1\n", "silu_and_mul", "has no 'silu_and_mul'"),
        ("silu_and_mul = 3\n", "silu_and_mul", "is a int, not a function"),
        (_DECORATED.format(task="rms_norm"), "mine", "is a kernel of rms_norm"),
        (
            _DECORATED.format(task="silu_and_mul").replace('("float32",)', '("fp32",)'),
            "mine",
            "dtypes must be a tuple of",
        ),
        (
            _DECORATED.format(task="silu_and_mul").replace('Requires(device="cpu", dtypes=("float32",))', "{}"),
            "mine",
            "requires= takes Requires",
        ),
        (_DECORATED.format(task="silu_and_mul") + "\nother = mine.named('other')\n", "", "kernels .'mine', 'other'."),
    ],
)
def test_bad_candidate_files_are_refused_in_one_sentence(tmp_path: Path, text: str, name: str, sentence: str) -> None:
    path = tmp_path / "bad.py"
    path.write_text(text)
    with pytest.raises(UsageError, match=sentence):
        registry.kernel("silu_and_mul", f"{path}:{name}" if name else str(path))


def test_a_changed_file_changes_the_hash(tmp_path: Path) -> None:
    hashes = []
    for number, text in enumerate((_PLAIN, _PLAIN + "# changed\n")):
        path = tmp_path / f"v{number}.py"
        path.write_text(text)
        hashes.append(registry.kernel("silu_and_mul", str(path)).source)
    assert hashes[0] != hashes[1]
