"""What an engine can be asked to do besides, with every task in force: each call is counted, in every process.

docs/interactions.md is the table of these tests.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from engine_support import IN_PROCESS, KERNELS, SITES, assert_calls

pytestmark = [pytest.mark.engine, pytest.mark.long]

LAST_STAGE = {"silu_and_mul": 2, "fused_add_rms_norm": 5, "rotary_embedding": 2}  # the final norm adds too
FIRST_STAGE = {"silu_and_mul": 2, "rms_norm": 1, "fused_add_rms_norm": 3, "rotary_embedding": 2}

_VLLM = """
import json, sys
from vllm import LLM, SamplingParams
if __name__ == "__main__":
    model, options, prompts = (json.loads(a) for a in sys.argv[1:])
    llm = LLM(model=model, skip_tokenizer_init=True, max_model_len=512, max_num_seqs=8, seed=0, **options)
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, detokenize=False)
    for _ in range(2):
        answers = llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
    print("CACHED", sum(a.num_cached_tokens or 0 for a in answers))
"""

_SGLANG = """
import json, sys
import sglang
if __name__ == "__main__":
    model, options, prompts = (json.loads(a) for a in sys.argv[1:])
    engine = sglang.Engine(model_path=model, skip_tokenizer_init=True, device="cpu", context_length=512,
                           max_running_requests=8, max_total_tokens=2048, attention_backend="torch_native",
                           sampling_backend="pytorch", disable_cuda_graph=True, disable_overlap_schedule=True,
                           **options)
    params = {"temperature": 0.0, "max_new_tokens": 8, "ignore_eos": True}
    for _ in range(2):
        answers = engine.generate(input_ids=prompts, sampling_params=params)
    print("CACHED", sum(a["meta_info"]["cached_tokens"] for a in answers))
    engine.shutdown()
"""

_LONG, _SHORT = list(range(3, 303)), [5, 6, 7]  # vLLM's CPU blocks hold 128 tokens, and only whole ones are cached


def _serve(script: str, model: Path, folder: Path, options: dict[str, Any], **environment: str) -> int:
    """How many tokens of the second of two equal batches came from a cache."""
    path = folder / "serve.py"
    path.write_text(script)
    env = {
        **os.environ,
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "FK_KERNELS": KERNELS,
        "FK_PLUGIN": "strict",
        "FK_PROOF_DIR": str(folder / "proof"),
        **environment,
    }
    arguments = [json.dumps(a) for a in (str(model), options, [_LONG, _SHORT])]
    done = subprocess.run(
        [sys.executable, path, *arguments],
        capture_output=True,
        text=True,
        env=env,
        check=False,
        timeout=600,
        cwd=folder,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    said = [line for line in done.stdout.splitlines() if line.startswith("CACHED ")]
    return int(said[-1].removeprefix("CACHED "))


@pytest.mark.parametrize("options", [
    pytest.param({"enable_prefix_caching": True}, id="prefix-caching"),
    pytest.param({"enable_chunked_prefill": True, "max_num_batched_tokens": 64}, id="chunked-prefill"),
    pytest.param({"speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2}},
                 id="speculative-ngram"),
    pytest.param({"enable_lora": True, "max_lora_rank": 8}, id="lora"),
])  # fmt: skip
def test_vllm(tiny: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    pytest.importorskip("vllm")
    asked = {"enable_prefix_caching": False, **options}  # on by default
    cached = _serve(_VLLM, tiny, tmp_path, asked, **IN_PROCESS)
    assert_calls(tmp_path / "proof", SITES)
    assert (cached > 0) == asked["enable_prefix_caching"]


@pytest.mark.parametrize(("options", "expected"), [
    pytest.param({"tensor_parallel_size": 2}, [SITES, SITES], id="tensor-parallel"),
    pytest.param({"pipeline_parallel_size": 2}, [FIRST_STAGE, LAST_STAGE], id="pipeline-parallel"),
])  # fmt: skip
def test_vllm_with_two_ranks(
    tiny: Path, tmp_path: Path, options: dict[str, Any], expected: list[dict[str, int]]
) -> None:
    pytest.importorskip("vllm")
    asked = {**options, "enforce_eager": True, "enable_prefix_caching": False}
    _serve(_VLLM, tiny, tmp_path, asked, VLLM_CPU_OMP_THREADS_BIND="0|1")
    assert_calls(tmp_path / "proof", *expected)


@pytest.mark.parametrize("options", [
    pytest.param({}, id="prefix-caching"),
    pytest.param({"disable_radix_cache": True, "chunked_prefill_size": 32}, id="chunked-prefill"),
])  # fmt: skip
def test_sglang(tiny: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    pytest.importorskip("sglang")
    cached = _serve(_SGLANG, tiny, tmp_path, options)
    assert_calls(tmp_path / "proof", SITES)
    assert (cached > 0) == (not options)
