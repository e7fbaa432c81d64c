"""Proof on a GPU that our kernels stand in the graphs an engine replays, by their names in a profile.

    python integration_tests/gpu/run_engines.py vllm|sglang on|off [--model dummy:llama-3.1-8b]

Starts the engine at its defaults (compiled, CUDA graphs), with every task in force that has a site in a Llama or with
the plugin off, profiles one batch of requests, and compares the launches of each kernel with sites times forwards, or
with none; forwards are counted on the device. The plugin must be installed. Writes $OUT/engines-ENGINE-SIDE.json.
"""

from __future__ import annotations

import argparse
import collections
import gzip
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

KERNELS = {
    "silu_and_mul": "triton_rows", "rms_norm": "triton_rows", "fused_add_rms_norm": "triton_rows",
    "rotary_embedding": "triton_heads",
}  # fmt: skip
REQUESTS, INPUT, OUTPUT = 32, 128, 32
ORDINARY = {"max_batched_tokens": 2048, "max_sequences": 256, "length": 1024}


def sites(config: dict[str, Any]) -> dict[str, int]:
    """Calls in one forward of a Llama: each layer adds the residual twice, the first norm has none to add."""
    layers = config["num_hidden_layers"]
    return {
        "silu_and_mul": layers, "rms_norm": 1, "fused_add_rms_norm": 2 * layers, "rotary_embedding": layers,
    }  # fmt: skip


class Vllm:
    """vLLM at its defaults, with a torch profiler in the worker."""

    def __init__(self, model: str, traces: Path) -> None:
        from vllm import LLM

        self._llm = LLM(
            model=model, skip_tokenizer_init=True, seed=0, enable_prefix_caching=False,
            max_model_len=ORDINARY["length"], max_num_batched_tokens=ORDINARY["max_batched_tokens"],
            max_num_seqs=ORDINARY["max_sequences"],
            profiler_config={"profiler": "torch", "torch_profiler_dir": str(traces),
                             "torch_profiler_with_stack": False, "torch_profiler_dump_cuda_time_total": False},
        )  # fmt: skip

    def describe(self) -> str:
        config = self._llm.llm_engine.vllm_config.compilation_config
        custom = ",".join(config.custom_ops)
        return f"{config.mode.name}, {config.cudagraph_mode.name}, custom_ops {custom}"

    def generate(self, prompts: list[list[int]]) -> list[list[int]]:
        from vllm import SamplingParams

        params = SamplingParams(temperature=0.0, max_tokens=OUTPUT, ignore_eos=True, detokenize=False)
        outputs = self._llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
        return [list(o.outputs[0].token_ids) for o in outputs]

    def profiled(self, run: Callable[[], Any]) -> Any:
        self._llm.start_profile()
        result = run()
        self._llm.stop_profile()
        return result

    def close(self) -> None:
        self._llm.llm_engine.engine_core.shutdown()


class Sglang:
    """SGLang at its defaults, profiled in its scheduler."""

    def __init__(self, model: str, traces: Path) -> None:
        from sglang import Engine

        self._traces = traces
        self._engine = Engine(
            model_path=model, skip_tokenizer_init=True, random_seed=0, disable_radix_cache=True,
            context_length=ORDINARY["length"], chunked_prefill_size=ORDINARY["max_batched_tokens"],
            max_running_requests=ORDINARY["max_sequences"],
        )  # fmt: skip

    def describe(self) -> str:
        args = self._engine.server_args
        graphs = "off" if args.disable_cuda_graph else "on"
        return f"CUDA graphs {graphs}, attention {args.attention_backend}, torch compile {args.enable_torch_compile}"

    def generate(self, prompts: list[list[int]]) -> list[list[int]]:
        sampling = {"temperature": 0.0, "max_new_tokens": OUTPUT, "ignore_eos": True}
        return [list(o["output_ids"]) for o in self._engine.generate(input_ids=prompts, sampling_params=sampling)]

    def profiled(self, run: Callable[[], Any]) -> Any:
        self._engine.start_profile(output_dir=str(self._traces), activities=["GPU"], with_stack=False)
        result = run()
        self._engine.stop_profile()
        return result

    def close(self) -> None:
        self._engine.shutdown()


ENGINES: dict[str, Any] = {"vllm": Vllm, "sglang": Sglang}


def kernels_seen(traces: Path) -> collections.Counter[str]:
    """Launches by kernel name in every trace of the folder, once the files are whole."""
    until = time.monotonic() + 60
    while True:
        files = sorted(traces.rglob("*.json.gz")) + sorted(traces.rglob("*.json"))
        try:
            loaded = [
                json.loads(gzip.decompress(f.read_bytes()) if f.suffix == ".gz" else f.read_bytes()) for f in files
            ]
            seen = collections.Counter(e["name"] for t in loaded for e in t["traceEvents"] if e.get("cat") == "kernel")
            if seen:
                return seen
        except (EOFError, json.JSONDecodeError):
            pass  # still being written
        if time.monotonic() > until:
            raise TimeoutError(f"no kernel in a trace under {traces} within 60 s: {files}")
        time.sleep(1)


def device_counts(folder: Path) -> dict[str, int]:
    """The device counters of the process that holds the model, flushed."""
    from fk_plugin import proof
    from fk_plugin.counters import read_events, read_folder

    pids = [e["pid"] for e in read_events(folder) if e["event"] == "model"]
    requests = [folder / f"{pid}.flush" for pid in pids]
    for request in requests:
        request.touch()
    until = time.monotonic() + 30
    while any(r.exists() for r in requests):
        if time.monotonic() > until:
            raise TimeoutError("device counters were not written within 30 s")
        time.sleep(0.05)
    totals: collections.Counter[str] = collections.Counter()
    for pid, counts in read_folder(folder).items():
        if pid in pids:
            totals.update(proof.on_device(counts))
    return dict(totals)


def measured(engine: str, model: str, work: Path, *, plugged: bool) -> dict[str, Any]:
    """What one start showed."""
    from fk_plugin import proof

    folder, traces = work / "proof", work / "traces"
    traces.mkdir(parents=True)
    choice = ",".join(f"{task}={kernel}" for task, kernel in KERNELS.items())
    on = {"FK_PLUGIN": "strict", "FK_KERNELS": choice, "FK_COMPILED": "bind"}
    os.environ |= {"FK_PROOF_DIR": str(folder), "FK_DEVICE_COUNTERS": "1", **(on if plugged else {"FK_PLUGIN": "off"})}
    began = time.monotonic()
    running = ENGINES[engine](model, traces)
    ready = time.monotonic() - began
    prompts = [[1 + (7 * r + 13 * i) % 1000 for i in range(INPUT)] for r in range(REQUESTS)]
    running.generate(prompts)
    before = device_counts(folder)
    tokens = running.profiled(lambda: running.generate(prompts))
    after = device_counts(folder)
    moved = {key: n - before.get(key, 0) for key, n in after.items()}
    row = {
        "engine": engine, "plugged": plugged, "described": running.describe(), "start_s": round(ready, 1),
        "forwards": proof.forwards(moved), "usage": {t: u.seen for t, u in proof.usage(moved).items()},
        "kernels": kernels_seen(traces).most_common(40), "tokens": tokens,
    }  # fmt: skip
    running.close()
    return row


def launched(row: dict[str, Any], task: str) -> int:
    """Launches of a task's kernels in the profile."""
    name = f"fk_{task}"
    return sum(n for kernel, n in row["kernels"] if kernel == name or kernel.startswith(f"{name}_"))


def judge(row: dict[str, Any], config: dict[str, Any]) -> list[tuple[bool, str]]:
    """One line for each task."""
    lines = [(row["forwards"] > OUTPUT - 1, f"{row['forwards']} forwards in the profile, by the device's count")]
    for task, count in sites(config).items():
        wanted = count * row["forwards"] if row["plugged"] else 0
        seen, counted = launched(row, task), row["usage"].get(task, 0)
        text = f"{task}: {seen} launches by name, {counted} by device counter, {wanted} expected"
        lines.append((seen == counted == wanted, text))
    return lines


def main() -> int:
    """Exit status 0: every line holds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("engine", choices=list(ENGINES))
    parser.add_argument("side", choices=["on", "off"])
    parser.add_argument("--model", default="dummy:llama-3.1-8b")
    asked = parser.parse_args()
    from fk_plugin.e2e import models

    model = models.resolve(asked.model, lambda text: print(f"     {text}", flush=True))
    config = json.loads((model / "config.json").read_text())
    with tempfile.TemporaryDirectory() as work:
        row = measured(asked.engine, str(model), Path(work), plugged=asked.side == "on")
    (Path(os.environ.get("OUT", ".")) / f"engines-{asked.engine}-{asked.side}.json").write_text(json.dumps(row) + "\n")
    print(f"{asked.engine}, plugin {asked.side}: {row['described']}; start {row['start_s']} s", flush=True)
    lines = judge(row, config)
    for good, text in lines:
        print(f"{'ok  ' if good else 'FAIL'} {text}", flush=True)
    for kernel, n in row["kernels"][:25]:
        print(f"     {n:6d} {kernel[:110]}", flush=True)
    return 0 if all(good for good, _ in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
