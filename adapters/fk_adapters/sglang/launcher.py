"""Starts SGLang for an end-to-end run (see fk_plugin.e2e.protocol)."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from packaging.version import Version

from fk_plugin.e2e.protocol import Completion, Options

# SGLang's CPU kernels are not on PyPI; these choices need none of them.
_CPU = {
    "device": "cpu",
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    "disable_cuda_graph": True,
    "disable_overlap_schedule": True,
    "max_total_tokens": 32768,
}


class SglangLauncher:
    """SGLang's offline engine, greedy, radix cache off."""

    @staticmethod
    def environment(device: str) -> dict[str, str]:
        """No hub; on CPU the newest must be told that it is on one, which the pinned one cannot bear."""
        common = {"HF_HUB_OFFLINE": "1"}
        told = device == "cpu" and Version(version("sglang")) >= Version("0.5.23")
        return {**common, "SGLANG_USE_CPU_ENGINE": "1"} if told else common

    def __init__(self, options: Options) -> None:
        import torch
        from sglang import Engine

        extra: dict[str, Any] = {} if torch.cuda.is_available() else dict(_CPU)
        if options.eager:
            extra["disable_cuda_graph"] = True
        self._engine = Engine(
            model_path=options.model,
            dtype=options.dtype,
            context_length=options.max_model_len,
            chunked_prefill_size=options.max_batched_tokens,
            max_running_requests=options.max_sequences,
            disable_radix_cache=True,
            skip_tokenizer_init=True,
            random_seed=0,
            **extra,
        )

    def describe(self) -> dict[str, Any]:
        """Version, graphs and backends as resolved."""
        import sglang

        args = self._engine.server_args
        return {
            "engine": f"sglang {sglang.__version__}",
            "cuda graphs": "off" if args.disable_cuda_graph else "on",
            "attention": args.attention_backend,
            "sampling": args.sampling_backend,
            "dtype": args.dtype,
        }

    def generate(
        self, prompts: list[list[int]], *, max_tokens: int, logprobs: int = 0, prompt_logprobs: bool = False
    ) -> list[Completion]:
        """See Launcher.generate."""
        wanted: dict[str, Any] = {}
        if logprobs or prompt_logprobs:
            wanted = {"return_logprob": True, "top_logprobs_num": logprobs}
            wanted["logprob_start_len"] = 0 if prompt_logprobs else -1
        sampling = {"temperature": 0.0, "max_new_tokens": max_tokens, "ignore_eos": True}
        outputs = self._engine.generate(input_ids=prompts, sampling_params=sampling, **wanted)
        return [_completion(output, bool(logprobs), prompt_logprobs) for output in outputs]

    def close(self) -> None:
        """Kill the scheduler and detokenizer."""
        self._engine.shutdown()


def _completion(output: dict[str, Any], decode: bool, prompt: bool) -> Completion:
    meta = output["meta_info"]
    top = []
    if decode:
        for chosen, row in zip(meta["output_token_logprobs"], meta["output_top_logprobs"], strict=True):
            top.append({chosen[1]: chosen[0], **{token: value for value, token, _ in row}})
    return Completion(
        tokens=list(output["output_ids"]),
        top=top,
        prompt=[row[0] for row in meta["input_token_logprobs"] if row[0] is not None] if prompt else [],
        cached=meta.get("cached_tokens") or 0,
    )
