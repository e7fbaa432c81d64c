"""SGLang: hooks around methods, one opaque operator behind each."""

from fk_adapters.sglang.bindings import ADAPTER

__all__ = ["ADAPTER"]
