"""`fk status` reads what engine processes wrote, and says for every task whether it is in force."""

import json
from pathlib import Path

import pytest

from fk_plugin import proof
from fk_plugin.cli.main import main


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder into which this process writes as an engine's would."""
    monkeypatch.setattr(proof, "_State", type("_State", (proof._State,), {}))
    proof.open_folder(tmp_path)
    proof.event("installed", engine="vllm", version="0.26.0", device="cpu", kernels="")
    return tmp_path


def _rows(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, dict[str, str]]]:
    status = main(["status", str(folder), "--json"])
    return status, {row["task"]: row for row in json.loads(capsys.readouterr().out)}


def test_in_force_declined_and_unused(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    proof.event("declined", task="rms_norm", owner="RMSNorm", reason="a pass fuses it")
    proof.event("model", root="Llama", bound={"silu_and_mul": ["a", "b"], "rms_norm": []})
    proof.count("call|silu_and_mul|cpu_fused|16", 4)
    proof.count("fall|silu_and_mul|reference|dtype float64|16", 2)
    status, rows = _rows(written, capsys)
    assert status == 0
    assert rows["silu_and_mul"]["state"] == "in force"
    assert rows["silu_and_mul"]["why"] == "2 modules; 4 calls of cpu_fused; 2 x dtype float64 -> reference"
    assert (rows["rms_norm"]["state"], rows["rms_norm"]["why"]) == ("declined", "RMSNorm: a pass fuses it")


@pytest.mark.parametrize(
    ("bound", "state"), [({"silu_and_mul": ["a"]}, "bound, never called"), ({"silu_and_mul": []}, "bound nowhere")]
)
def test_what_is_not_in_force_is_exit_status_1(
    written: Path, capsys: pytest.CaptureFixture[str], bound: dict[str, list[str]], state: str
) -> None:
    proof.event("model", root="Llama", bound=bound)
    status, rows = _rows(written, capsys)
    assert status == 1 and rows["silu_and_mul"]["state"] == state


def test_what_the_engine_may_take_itself_is_no_failure(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = {"rms_norm": ["a"], "fused_add_rms_norm": ["a", "b"]}
    proof.event("model", root="Llama", bound=names, shared=dict.fromkeys(names, "a pass fuses some"))
    proof.count("call|fused_add_rms_norm|cpu_rows|16", 4)
    status, rows = _rows(written, capsys)
    assert status == 0
    assert (rows["rms_norm"]["state"], rows["rms_norm"]["why"]) == (
        "left to the engine",
        "1 modules (a pass fuses some)",
    )
    assert rows["fused_add_rms_norm"]["state"] == "in force"


def test_a_kernel_error_and_a_refusal_are_shown(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    proof.event("kernel_error", task="silu_and_mul", kernel="mine", message="kernel mine failed: ValueError: no")
    proof.event("stood_down", message="rms_norm expects vllm >=0.26")
    status, rows = _rows(written, capsys)
    assert status == 1
    assert rows["silu_and_mul"]["why"] == "kernel mine failed: ValueError: no"
    assert rows[""]["why"] == "rms_norm expects vllm >=0.26"


def test_without_proofs_it_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FK_PROOF_DIR", raising=False)
    assert main(["status", str(tmp_path)]) == 2
    assert f"start one with FK_PROOF_DIR={tmp_path}" in capsys.readouterr().err
    assert main(["status"]) == 2
    assert "name it" in capsys.readouterr().err
