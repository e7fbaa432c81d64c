"""SGLang on CPU: proof of use, accuracy, and every way to be silently unused made loud."""

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest
from engine_support import (
    KERNELS,
    NEVER_MATCHES,
    RAISES,
    SITES,
    WRONG_BY_TEN_PERCENT,
    WRONG_WHILE_TIMED,
    Run,
    assert_calls,
    assert_proofs,
    engine,
    fk,
)

from fk_plugin.e2e.client import EngineFailed

pytestmark = pytest.mark.engine
pytest.importorskip("sglang")


SMALL = ("--requests", "4", "--input-len", "16", "--output-len", "8", "--starts", "1", "--passes", "1",
         "--max-batched-tokens", "64")  # fmt: skip


def test_real_weights_proved_and_accurate(e2e: Callable[..., Run]) -> None:
    run = e2e("sglang", "--model", "smollm2", "--kernels", "silu_and_mul=cpu_fused", *SMALL)
    assert_proofs(run, silu_and_mul=30)


@pytest.mark.long
def test_four_tasks_on_real_weights(e2e: Callable[..., Run]) -> None:
    run = e2e("sglang", "--model", "smollm2", "--kernels", KERNELS, "--starts", "1", "--passes", "2")
    assert_proofs(run, silu_and_mul=30, rms_norm=1, fused_add_rms_norm=60, rotary_embedding=30)


@pytest.mark.newest
def test_every_task_is_called_as_often_as_the_model_calls_it(tiny: Path, tmp_path: Path) -> None:
    """A class may hold two tasks, and a subclass inherit a hooked method."""
    with engine("sglang", tiny, tmp_path / "run", FK_KERNELS=KERNELS, FK_PLUGIN="strict") as started:
        started.generate([[1, 2, 3], [4, 5]], max_tokens=4)
        assert_calls(started.proof, SITES)


def test_a_kernel_wrong_by_ten_percent_fails_the_accuracy_check(e2e: Callable[..., Run], tmp_path: Path) -> None:
    path = tmp_path / "wrong.py"
    path.write_text(WRONG_BY_TEN_PERCENT)
    run = e2e("sglang", "--model", "smollm2", "--kernels", f"silu_and_mul={path}", *SMALL)
    assert run.status == 1
    assert not run.check("accuracy, prefill")["passed"], run.output
    assert run.check("called, silu_and_mul")["passed"]


@pytest.mark.long
def test_a_kernel_that_is_wrong_only_while_the_clock_runs_fails(e2e: Callable[..., Run], tmp_path: Path) -> None:
    path = tmp_path / "timed.py"
    path.write_text(WRONG_WHILE_TIMED)
    run = e2e("sglang", "--model", "smollm2", "--kernels", f"silu_and_mul={path}", *SMALL)
    assert run.status == 1
    assert {c["name"] for c in run.data["checks"] if not c["passed"]} == {"timed passes"}, run.output


@pytest.mark.long
def test_a_kernel_that_never_matches_is_said_to_be_unused(e2e: Callable[..., Run], tmp_path: Path) -> None:
    path = tmp_path / "never.py"
    path.write_text(NEVER_MATCHES)
    run = e2e("sglang", "--model", "dummy:tiny-llama", "--kernels", f"silu_and_mul={path}", *SMALL)
    assert run.status == 1
    check = run.check("kernel ran, silu_and_mul")
    assert not check["passed"] and "bound, never used" in check["detail"] and "never mind" in check["detail"]


@pytest.mark.newest
def test_strict_ends_the_run_on_a_kernel_error_and_auto_goes_on(tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "raises.py"
    path.write_text(RAISES)
    choice = {"FK_KERNELS": f"silu_and_mul={path}"}
    with pytest.raises(EngineFailed, match="ArithmeticError: planted"):
        with engine("sglang", tiny, tmp_path / "strict", FK_PLUGIN="strict", **choice) as started:
            started.generate([[1, 2, 3]], max_tokens=2)
    with engine("sglang", tiny, tmp_path / "auto", FK_PLUGIN="auto", **choice) as started:
        assert len(started.generate([[1, 2, 3]], max_tokens=2).completions[0].tokens) == 2
        keys = [key for counts in started.counts().values() for key in counts if key.startswith("fall|")]
        said = fk("status", str(started.proof))
    assert said.status == 1 and "failed" in said.output and "ArithmeticError: planted" in said.output
    assert keys and all("kernel error ArithmeticError" in key for key in keys)


@pytest.mark.newest
@pytest.mark.parametrize(
    ("choice", "sentence"),
    [
        ("silu_and_mul=cpu_fusd", "did you mean cpu_fused"),
        pytest.param("silu_and_mull=cpu_fused", "did you mean silu_and_mul", marks=pytest.mark.long),
    ],
)
def test_an_unknown_name_ends_the_run_although_sglang_swallows_plugin_errors(
    tiny: Path, tmp_path: Path, choice: str, sentence: str
) -> None:
    with pytest.raises(EngineFailed, match=sentence), engine("sglang", tiny, tmp_path, FK_KERNELS=choice):
        pytest.fail("the engine started")


_OTHER_VERSION = """
import dataclasses
import fk_adapters.sglang.bindings as b
rows = tuple(dataclasses.replace(row, versions=">=9") for row in b.BINDINGS)
b.ADAPTER = dataclasses.replace(b.ADAPTER, bindings=rows)
"""


def test_an_unknown_engine_version_stands_down_with_one_line_and_strict_refuses(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(_OTHER_VERSION)
    choice = {"FK_KERNELS": "silu_and_mul=cpu_fused", "PYTHONPATH": str(tmp_path)}
    with engine("sglang", tiny, tmp_path / "auto", FK_PLUGIN="auto", **choice) as started:
        started.generate([[1, 2, 3]], max_tokens=2)
        said = {e["message"] for e in started.events() if e["event"] == "stood_down"}
        counts = [key for c in started.counts().values() for key in c if key.startswith(("call|", "fall|"))]
    assert said == {f"silu_and_mul expects sglang >=9 on cpu or >=9 on cuda, but found {version('sglang')} on cpu"}
    assert counts == []
    with pytest.raises(EngineFailed, match="FK_PLUGIN=strict: silu_and_mul expects sglang >=9"):
        with engine("sglang", tiny, tmp_path / "strict", FK_PLUGIN="strict", **choice):
            pytest.fail("the engine started")


def test_bad_requests_end_with_status_2_and_what_to_do() -> None:
    for arguments, sentence in (
        (("e2e", "sglang", "--model", "smollm2"), "no kernel is in force"),
        (("e2e", "sglan", "--model", "smollm2"), "did you mean sglang"),
        (("e2e", "sglang", "--model", "/nowhere", "--kernels", "silu_and_mul=cpu_fused"), "holds no config.json"),
        (("e2e", "sglang", "--model", "dummy:lama", "--kernels", "silu_and_mul=cpu_fused"), "did you mean"),
        (("e2e", "sglang", "--model", "smollm2", "--kernels", "silu_and_mul=x"), "no kernel of silu_and_mul"),
        (("e2e", "sglang", "--model", "smollm2", "--requests", "0"), "must be at least 1"),
        (("e2e", "sglang", "--model", "smollm2", "--kernels", "silu_and_mul=triton_rows"), "needs an NVIDIA GPU"),
        (("e2e", "sglang", "--model", "dummy:/no/x.json", "--kernels", "silu_and_mul=cpu_fused"), "is no file"),
        (("e2e", "sglang"), "required: --model"),
    ):
        run = fk(*arguments)
        assert run.status == 2, run.output
        assert sentence in run.output
