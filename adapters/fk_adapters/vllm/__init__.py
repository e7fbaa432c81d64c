"""vLLM: classes registered out of tree, one opaque operator behind each."""

from fk_adapters.vllm.bindings import ADAPTER

__all__ = ["ADAPTER"]
