"""What an engine launcher must offer. Launchers live in the adapters and run in a child process of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to start an engine. `eager` turns its compiler and graphs off; False leaves the engine's defaults."""

    model: str
    dtype: str
    max_model_len: int
    max_batched_tokens: int
    max_sequences: int
    eager: bool = False

    def to_json(self) -> dict[str, Any]:
        """A dict that Options(**dict) takes back."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Completion:
    """One request's answer, greedy.

    Attributes:
        tokens: generated token ids.
        top: for each generated token, the most probable ids with their log-probabilities (natural log), the chosen
            one among them; empty unless asked for.
        prompt: log-probability of each prompt token given those before it, from the second on; empty unless asked.
        cached: prompt tokens that the engine took from a prefix cache.
    """

    tokens: list[int]
    top: list[dict[int, float]] = field(default_factory=list)
    prompt: list[float] = field(default_factory=list)
    cached: int = 0

    def to_json(self) -> dict[str, Any]:
        """JSON form; token ids become strings as keys."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Completion:
        """The inverse of to_json, after a trip through JSON text."""
        top = [{int(token): value for token, value in row.items()} for row in data["top"]]
        return cls(tokens=data["tokens"], top=top, prompt=data["prompt"], cached=data["cached"])


class Launcher(Protocol):
    """An engine in this process or its children. Construction returns when it is ready for requests."""

    @staticmethod
    def environment(device: str) -> dict[str, str]:
        """Variables the engine's processes need on this device ("cpu" or "cuda"); the user's own settings win."""

    def __init__(self, options: Options) -> None: ...

    def describe(self) -> dict[str, Any]:
        """What was resolved: engine version, compilation mode, graphs, attention; shown in the report."""

    def generate(
        self, prompts: list[list[int]], *, max_tokens: int, logprobs: int = 0, prompt_logprobs: bool = False
    ) -> list[Completion]:
        """Greedy completions of exactly `max_tokens` tokens each, in order; end-of-sequence is ignored."""

    def close(self) -> None:
        """Stop every process of the engine."""
