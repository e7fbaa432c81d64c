"""`fk bench` as a user runs it: table, JSON, exit status, and one clear sentence for each bad input."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TOY = Path(__file__).with_name("toy.py")
KERNEL = "import torch\ndef scale(x, weight):\n    return torch.addcmul(x.new_zeros(()), x, weight).contiguous()\n"


def fk(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the command from an empty folder."""
    command = [sys.executable, "-m", "fk_plugin.cli.main", "bench", *words]
    env = {**os.environ, "COLUMNS": "200"}
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=env, timeout=300, check=False)


def test_a_strangers_kernel_gets_a_table_and_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(KERNEL)
    done = fk(f"{TOY}:SCALE", "--kernel", "mine.py", "--device", "cpu", "--baselines", "reference", "--budget", "0.3",
              "--workloads", "w64", "--json", "out/result.json", cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "mine:scale" in done.stdout and "reference" in done.stdout and "w64" in done.stdout
    data = json.loads((tmp_path / "out" / "result.json").read_text())
    (row,) = data["rows"]
    assert row["baseline"] == "reference" and row["verdict"]["status"] in ("OK", "NOISY")
    assert len(row["samples"]["b"]) == len(row["samples"]["c"]) >= 10
    assert row["candidate_s"] > 0 and row["floor_s"] > 0 and data["environment"]["device"]
    assert row["errors"]["row"] <= 1e-7


def test_a_wrong_kernel_fails_the_run_with_one_line_and_the_next_is_measured(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(KERNEL)
    (tmp_path / "bad.py").write_text("def scale(x, weight):\n    return x + weight\n")
    done = fk(f"{TOY}:SCALE", "--kernel", "bad.py", "--kernel", "mine.py", "--device", "cpu", "--baselines",
              "reference", "--budget", "0.3", "--workloads", "w64", cwd=tmp_path)  # fmt: skip
    assert done.returncode == 1
    assert sum(line.startswith("bad:scale: WRONG") for line in done.stdout.splitlines()) == 1
    assert any("mine:scale" in line and ("OK" in line or "NOISY" in line) for line in done.stdout.splitlines())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("silu_and_mull",), "did you mean silu_and_mul"),
        (("silu_and_mul", "--kernel", "nowhere.py"), "nowhere.py is no file"),
        (("silu_and_mul", "--kernel", "cpu_fast"), "did you mean cpu_fused"),
        (("silu_and_mul", "--workloads", "llama-9*"), "no workload of silu_and_mul matches"),
        (("silu_and_mul", "--mode", "graph", "--device", "cpu"), "CUDA graphs"),
        (("silu_and_mul", "--mode", "fast"), "invalid choice"),
        (("silu_and_mul", "--gpus", "2", "--device", "cpu"), "runs on one rank"),
        (("silu_and_mul", "--gpus", "0"), "at least 1"),
        (("all_reduce", "--device", "cpu"), "needs 2 ranks"),
        (("silu_and_mul", "--budget", "0"), "--budget must be positive"),
        (("silu_and_mul", "--baselines", "referense", "--kernel", "cpu_fused", "--device", "cpu"), "did you mean"),
        (("silu_and_mul", "--json", ".", "--device", "cpu"), "is a folder"),
        (("nowhere.py:TASK",), "is no file"),
        ((f"{TOY}:scale",), "is not a Task"),
    ],
)
def test_bad_input_is_one_sentence_and_status_2(words: tuple[str, ...], sentence: str, tmp_path: Path) -> None:
    done = fk(*words, cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("fk: ")]
    assert len(lines) == 1 and sentence in lines[0] and "Traceback" not in done.stderr
