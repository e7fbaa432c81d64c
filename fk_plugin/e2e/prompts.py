"""Prompts as token ids, the same on every side of a comparison: English text where there is a tokenizer."""

from __future__ import annotations

import json
import random
from pathlib import Path

# One prompt for every power of two of tokens: what the accuracy sweep judges.
SMALLEST_SWEEP = 2


def _text() -> str:
    # The interpreter's own help texts: about 700 kB of English on every machine, no download.
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))


def corpus(model: Path, length: int, seed: int) -> list[int]:
    """`length` token ids: tokenized text if the model's folder has a tokenizer.json, else uniformly random ids."""
    tokenizer = model / "tokenizer.json"
    if tokenizer.is_file():
        from tokenizers import Tokenizer

        ids: list[int] = Tokenizer.from_file(str(tokenizer)).encode(_text()).ids
        return (ids * (length // len(ids) + 1))[:length]
    size = json.loads((model / "config.json").read_text())["vocab_size"]
    generator = random.Random(seed)
    return [generator.randrange(size) for _ in range(length)]


def requests(model: Path, *, count: int, length: int, seed: int) -> list[list[int]]:
    """`count` prompts of `length` tokens each, no two alike."""
    ids = corpus(model, count * length, seed)
    return [ids[i * length : (i + 1) * length] for i in range(count)]


def sweep(model: Path, *, longest: int, seed: int) -> list[list[int]]:
    """Prompts of 2, 4, 8, ... tokens up to `longest`: alone in the engine, each fills one token-count bucket."""
    lengths = []
    length = SMALLEST_SWEEP
    while length <= longest:
        lengths.append(length)
        length *= 2
    ids = corpus(model, 2 * longest, seed + 1)
    generator = random.Random(seed)
    starts = [generator.randrange(len(ids) - n + 1) for n in lengths]
    return [ids[start : start + n] for start, n in zip(starts, lengths, strict=True)]
