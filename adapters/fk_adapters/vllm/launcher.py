"""Starts vLLM for an end-to-end run (see fk_plugin.e2e.protocol)."""

from __future__ import annotations

from typing import Any

from fk_plugin.e2e.protocol import Completion, Options


class VllmLauncher:
    """vLLM's offline engine, greedy, prefix caching off."""

    @staticmethod
    def environment(device: str) -> dict[str, str]:
        """No usage reports, no hub; on CPU a KV cache of 1 GiB instead of half the memory."""
        common = {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
        return {**common, "VLLM_CPU_KVCACHE_SPACE": "1"} if device == "cpu" else common

    def __init__(self, options: Options) -> None:
        from vllm import LLM

        self._llm = LLM(
            model=options.model,
            dtype=options.dtype,
            max_model_len=options.max_model_len,
            max_num_batched_tokens=options.max_batched_tokens,
            max_num_seqs=options.max_sequences,
            enforce_eager=options.eager,
            enable_prefix_caching=False,
            skip_tokenizer_init=True,
            seed=0,
        )

    def describe(self) -> dict[str, Any]:
        """Version, compilation mode and graph mode as resolved."""
        import vllm

        config = self._llm.llm_engine.vllm_config
        compilation = config.compilation_config
        return {
            "engine": f"vllm {vllm.__version__}",
            "compilation": compilation.mode.name,
            "cuda graphs": compilation.cudagraph_mode.name,
            "custom_ops": ",".join(compilation.custom_ops),
            "dtype": str(config.model_config.dtype).removeprefix("torch."),
        }

    def generate(
        self, prompts: list[list[int]], *, max_tokens: int, logprobs: int = 0, prompt_logprobs: bool = False
    ) -> list[Completion]:
        """See Launcher.generate."""
        from vllm import SamplingParams

        params = SamplingParams(
            temperature=0.0,
            max_tokens=max_tokens,
            ignore_eos=True,
            detokenize=False,
            logprobs=logprobs or None,
            prompt_logprobs=0 if prompt_logprobs else None,
        )
        requests = [{"prompt_token_ids": ids} for ids in prompts]
        outputs = self._llm.generate(requests, params, use_tqdm=False)
        return [_completion(output) for output in outputs]

    def close(self) -> None:
        """Shut the engine core down."""
        self._llm.llm_engine.engine_core.shutdown()


def _completion(output: Any) -> Completion:
    best = output.outputs[0]
    ids = output.prompt_token_ids
    rows = output.prompt_logprobs or []
    return Completion(
        tokens=list(best.token_ids),
        top=[{token: entry.logprob for token, entry in row.items()} for row in best.logprobs or []],
        prompt=[row[token].logprob for token, row in zip(ids, rows, strict=False) if row is not None],
        cached=output.num_cached_tokens or 0,
    )
