"""Published model configurations, as facts: the sizes in each model's config.json on Hugging Face."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_LLAMA_31_8B: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-05,
    "rope_parameters": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "hidden_act": "silu",
    "bos_token_id": 128000,
    "eos_token_id": 128001,
}

# Not a published model: Llama's structure, small enough for tests on CPU.
_TINY_LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 2048,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-05,
    "hidden_act": "silu",
    "bos_token_id": 1,
    "eos_token_id": 2,
}

CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "llama-3.1-8b": _LLAMA_31_8B,
    "tiny-llama": _TINY_LLAMA,
}
