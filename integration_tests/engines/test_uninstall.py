"""After `pip uninstall`: log-probabilities, compile-cache key and calls are those of a never-installed run."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import environments
import pytest
from engine_support import IN_PROCESS

pytestmark = pytest.mark.engine

_VLLM = """
import json, os, sys
from pathlib import Path
if __name__ == "__main__":
    from vllm import LLM, SamplingParams, envs
    from vllm.model_executor.custom_op import op_registry_oot
    llm = LLM(model=sys.argv[1], skip_tokenizer_init=True, max_model_len=256, enable_prefix_caching=False, seed=0)
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, detokenize=False, logprobs=1,
                            prompt_logprobs=0)
    out = llm.generate([{"prompt_token_ids": list(range(5, 45))}], params, use_tqdm=False)[0]
    config = llm.llm_engine.vllm_config
    root = Path(os.environ["VLLM_CACHE_ROOT"], "torch_compile_cache")
    print("RESULT", json.dumps({
        "logprobs": [list(r.values())[0].logprob for r in out.prompt_logprobs[1:]],
        "decode": [[t, r[t].logprob] for t, r in zip(out.outputs[0].token_ids, out.outputs[0].logprobs)],
        "key": [config.compute_hash(), sorted(p.name for p in root.glob("*")), sorted(envs.compile_factors())],
        "replaced": sorted(op_registry_oot),
        "modules": sorted(m for m in sys.modules if m.split(".")[0] in ("fk_plugin", "fk_adapters", "fk_kernels")),
    }))
    llm.llm_engine.engine_core.shutdown()
"""

_SGLANG = """
import json, sys
if __name__ == "__main__":
    from sglang import Engine
    from sglang.srt.plugins.hook_registry import HookRegistry
    llm = Engine(model_path=sys.argv[1], device="cpu", attention_backend="torch_native", sampling_backend="pytorch",
                 disable_cuda_graph=True, disable_overlap_schedule=True, skip_tokenizer_init=True,
                 disable_radix_cache=True, max_total_tokens=4096, random_seed=0, context_length=256)
    meta = llm.generate(input_ids=[list(range(5, 45))], return_logprob=True, logprob_start_len=0,
                        sampling_params={"temperature": 0, "max_new_tokens": 8, "ignore_eos": True})[0]["meta_info"]
    print("RESULT", json.dumps({
        "logprobs": [r[0] for r in meta["input_token_logprobs"]],
        "decode": [r[:2] for r in meta["output_token_logprobs"]],
        "key": [],
        "replaced": sorted(HookRegistry._hooks),
        "modules": sorted(m for m in sys.modules if m.split(".")[0] in ("fk_plugin", "fk_adapters", "fk_kernels")),
    }))
    llm.shutdown()
"""


def _run(python: str, script: str, model: Path, folder: Path, **environment: str) -> tuple[dict[str, Any], int]:
    """The script's result and the number of our operators' calls that any process counted."""
    folder.mkdir()
    (folder / "run.py").write_text(script)
    base = {k: v for k, v in os.environ.items() if not k.startswith("FK_") or k == "FK_CACHE_DIR"}
    env = {**base, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_CACHE_ROOT": str(folder / "cache"),
           "FK_PROOF_DIR": str(folder / "proof"), **IN_PROCESS, **environment}  # fmt: skip
    done = subprocess.run([python, "run.py", str(model)], cwd=folder, capture_output=True, text=True, env=env,
                          check=False, timeout=400)  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stdout[-2000:] + done.stderr[-4000:]
    from fk_plugin import proof
    from fk_plugin.counters import read_folder

    counts = read_folder(folder / "proof").values() if (folder / "proof").exists() else []
    calls = sum(usage.seen for c in counts for usage in proof.usage(c).values())
    return json.loads(lines[0].removeprefix("RESULT ")), calls


@pytest.mark.parametrize(("engine", "script"), [("vllm", _VLLM), ("sglang", _SGLANG)])
def test_uninstalled_equals_never_installed(engine: str, script: str, tiny: Path, tmp_path: Path) -> None:
    pytest.importorskip(engine)
    python = environments.overlay("engines-cpu", "none", tmp_path / "env")
    never, calls = _run(python, script, tiny, tmp_path / "never")
    assert (calls, never["replaced"], never["modules"]) == (0, [], [])

    below = environments.base("engines-cpu")
    environments.install(below, python, "wheel")
    canary, calls = _run(python, script, tiny, tmp_path / "with", FK_KERNELS="silu_and_mul=canary")
    assert calls > 0, "the plugin was not in force, so the comparison below would prove nothing"
    assert canary["logprobs"] != never["logprobs"]
    assert "fk_plugin" in canary["modules"] and canary["replaced"] != []
    if engine == "vllm":
        assert canary["key"] != never["key"], "a compiled graph of one would be loaded by the other"

    environments.run(below, "-m", "pip", "--python", python, "uninstall", "-q", "-y", "fk-plugin")
    after, calls = _run(python, script, tiny, tmp_path / "after", FK_KERNELS="silu_and_mul=canary")
    assert calls == 0
    assert after == never
