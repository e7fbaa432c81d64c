"""vLLM on CPU, in its default mode (compiled; custom_ops "none") and eager."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from engine_support import IN_PROCESS, KERNELS, RAISES, SITES, Run, assert_calls, assert_proofs, engine

from fk_plugin.e2e.client import EngineFailed

pytestmark = pytest.mark.engine
pytest.importorskip("vllm")


TINY = ("--model", "dummy:tiny-llama", "--kernels", "silu_and_mul=cpu_fused", "--requests", "4", "--input-len", "16",
        "--output-len", "12", "--starts", "1", "--passes", "1", "--max-batched-tokens", "64")  # fmt: skip


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests keep vLLM's engine core in a process of its own."""
    for name, value in IN_PROCESS.items():
        monkeypatch.setenv(name, value)


def _assert_insists(run: Run, sites: int) -> None:
    """Inductor sets custom_ops to "none", which silently unplugs every out-of-tree class that does not insist."""
    assert run.data["engine_resolved"]["custom_ops"] == "none"
    assert run.data["engine_resolved"]["compilation"] != "NONE"
    assert_proofs(run, silu_and_mul=sites)


@pytest.mark.newest
def test_default_mode(e2e: Callable[..., Run], in_process: None) -> None:
    _assert_insists(e2e("vllm", *TINY), sites=4)


@pytest.mark.long
def test_default_mode_on_real_weights(e2e: Callable[..., Run]) -> None:
    run = e2e("vllm", "--model", "smollm2", "--kernels", "silu_and_mul=cpu_fused", "--starts", "1", "--passes", "2")
    _assert_insists(run, sites=30)


@pytest.mark.long
def test_three_tasks_on_real_weights(e2e: Callable[..., Run]) -> None:
    """Rotary is left out: without AVX-512 vLLM's own cuts bfloat16 off, and the right kernel differs from it."""
    kernels = KERNELS.rpartition(",")[0]
    run = e2e("vllm", "--model", "smollm2", "--kernels", kernels, "--starts", "1", "--passes", "2")
    assert_proofs(run, silu_and_mul=30, rms_norm=1, fused_add_rms_norm=60)


@pytest.mark.newest
@pytest.mark.parametrize("eager", [False, pytest.param(True, marks=pytest.mark.long)], ids=["default", "eager"])
def test_every_task_is_called_as_often_as_the_model_calls_it(tiny: Path, tmp_path: Path, eager: bool) -> None:
    """In the default, compiled mode operators that write their arguments lie in Inductor's graph."""
    with engine("vllm", tiny, tmp_path / "run", eager=eager, FK_KERNELS=KERNELS, FK_PLUGIN="strict") as started:
        started.generate([[1, 2, 3], [4, 5]], max_tokens=4)
        assert_calls(started.proof, SITES)


@pytest.mark.long
def test_eager(e2e: Callable[..., Run], in_process: None) -> None:
    run = e2e("vllm", *TINY, "--eager")
    assert run.data["engine_resolved"]["custom_ops"] == "all"
    assert_proofs(run, silu_and_mul=4)


@pytest.mark.newest
def test_strict_ends_the_run_on_a_kernel_error(tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "raises.py"
    path.write_text(RAISES)
    choice = {"FK_KERNELS": f"silu_and_mul={path}", "FK_PLUGIN": "strict"}
    with (
        pytest.raises(EngineFailed, match="ArithmeticError: planted"),
        engine("vllm", tiny, tmp_path / "run", **choice) as started,
    ):
        # 0.26 calls the kernel in its profile run already; 0.32 has none in an eager start on a CPU
        started.generate([[1, 2, 3]], max_tokens=2)
        pytest.fail("the engine answered")


def test_an_unknown_name_ends_the_run(tiny: Path, tmp_path: Path) -> None:
    choice = {"FK_KERNELS": "silu_and_mul=cpu_fusd"}
    with pytest.raises(EngineFailed, match="did you mean cpu_fused"), engine("vllm", tiny, tmp_path, **choice):
        pytest.fail("the engine started")


@pytest.mark.long
def test_strict_refuses_a_site_that_the_user_switched_off(tiny: Path, tmp_path: Path) -> None:
    """`-silu_and_mul` in custom_ops keeps its meaning: in-tree code, so nothing is bound and strict says so."""
    script = tmp_path / "refuse.py"
    script.write_text(
        "from vllm import LLM\n"
        "if __name__ == '__main__':\n"
        f"    LLM(model={str(tiny)!r}, skip_tokenizer_init=True, enforce_eager=True, max_model_len=256,\n"
        "        compilation_config={'custom_ops': ['all', '-silu_and_mul']})\n"
    )
    env = {**os.environ, "FK_PLUGIN": "strict", "FK_KERNELS": "silu_and_mul=cpu_fused", "VLLM_CPU_KVCACHE_SPACE": "1"}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=env, check=False, timeout=400)
    assert done.returncode != 0
    assert "task silu_and_mul is not bound anywhere in LlamaForCausalLM" in done.stdout + done.stderr
