"""What only the newest engines have, or what is cheap enough to ask of them alone."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from engine_support import IN_PROCESS, Run, assert_calls, assert_proofs, engine

from fk_plugin.e2e.client import EngineFailed

pytestmark = [pytest.mark.engine, pytest.mark.long, pytest.mark.newest]

SMALL = ("--model", "dummy:tiny-llama", "--requests", "4", "--input-len", "16", "--output-len", "8", "--starts", "1",
         "--passes", "1", "--max-batched-tokens", "64")  # fmt: skip

_OTHER_SIGNATURE = """
import dataclasses
import fk_adapters.{engine}.bindings as b
rows = tuple(dataclasses.replace(row, signature="(self, y)") for row in b.BINDINGS)
b.ADAPTER = dataclasses.replace(b.ADAPTER, bindings=rows)
"""

_TRANSFORMERS_BACKEND = """
import sys
from vllm import LLM, SamplingParams
if __name__ == "__main__":
    llm = LLM(model=sys.argv[1], skip_tokenizer_init=True, max_model_len=256, max_num_seqs=8, seed=0,
              model_impl="transformers", enforce_eager=sys.argv[2] == "eager")
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, detokenize=False)
    llm.generate([{"prompt_token_ids": [5, 6, 7]}], params, use_tqdm=False)
"""


def test_sglang_off_and_plugged(e2e: Callable[..., Run]) -> None:
    """Nothing of ours is called in the baseline, and every call of the plugged side is accounted for."""
    pytest.importorskip("sglang")
    assert_proofs(e2e("sglang", *SMALL, "--kernels", "fused_add_rms_norm=cpu_rows"), fused_add_rms_norm=8)


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_an_unknown_signature_stands_down_with_one_line_and_strict_refuses(
    name: str, tiny: Path, tmp_path: Path
) -> None:
    pytest.importorskip(name)
    (tmp_path / "sitecustomize.py").write_text(_OTHER_SIGNATURE.format(engine=name))
    choice = {"FK_KERNELS": "fused_add_rms_norm=cpu_rows", "PYTHONPATH": str(tmp_path)}
    with engine(name, tiny, tmp_path / "auto", FK_PLUGIN="auto", **choice) as started:
        started.generate([[1, 2, 3]], max_tokens=2)
        said = {e["message"] for e in started.events() if e["event"] == "stood_down"}
        counts = [key for c in started.counts().values() for key in c]
    assert len(said) == 1 and "with signature (self, y), but found (self, " in said.pop()
    assert any(key.startswith("forward|") for key in counts)
    assert not any(key.startswith(("call|", "fall|")) for key in counts)
    with pytest.raises(EngineFailed, match=r"FK_PLUGIN=strict: fused_add_rms_norm: expected .* but found"):
        with engine(name, tiny, tmp_path / "strict", FK_PLUGIN="strict", **choice):
            pytest.fail("the engine started")


@pytest.mark.parametrize("mode", ["default", "eager"])
def test_vllms_transformers_backend_with_classes_of_its_own(tiny: Path, tmp_path: Path, mode: str) -> None:
    """They have a register of their own; a class in the other one is never built there."""
    pytest.importorskip("vllm")
    pytest.importorskip("vllm.model_executor.hw_agnostic", reason="vLLM has no second register before 0.32")
    script = tmp_path / "serve.py"
    script.write_text(_TRANSFORMERS_BACKEND)
    env = {**os.environ, **IN_PROCESS, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1",
           "VLLM_NO_USAGE_STATS": "1", "VLLM_USE_HW_AGNOSTIC": "1", "FK_KERNELS": "silu_and_mul=cpu_fused",
           "FK_PLUGIN": "strict", "FK_PROOF_DIR": str(tmp_path / "proof")}  # fmt: skip
    done = subprocess.run([sys.executable, script, str(tiny), mode], capture_output=True, text=True, env=env,
                          check=False, timeout=400, cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    assert "Using hw-agnostic activation: silu" in done.stdout + done.stderr
    assert_calls(tmp_path / "proof", {"silu_and_mul": 4})
