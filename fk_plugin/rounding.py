"""One more rounding, made on purpose, to measure what it costs.

A kernel that computes the same in another order differs from the engine's own by about one rounding of its result. How
much that moves a model's log-probabilities depends on the model, so it is measured on the engine itself, without any
of our kernels: a traced process (FK_TRACE=1) changes a quarter of the elements that its own code returns at the sites
of some tasks to the next representable value. A rounding error of half a unit in the last place, evenly spread before
the last rounding, changes as many.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

_FILE = "round-again"  # in FK_PROOF_DIR; holds the tasks' names
_SHARE = 0.25


def ask(folder: Path, tasks: Iterable[str]) -> None:
    """Have the traced processes that write into `folder` round results of `tasks` once more from now on."""
    waiting = folder / f"{_FILE}.new"
    waiting.write_text("\n".join(tasks))
    waiting.rename(folder / _FILE)


def asked(folder: Path) -> list[str]:
    """The tasks whose results are to be rounded once more."""
    try:
        return (folder / _FILE).read_text().split()
    except FileNotFoundError:
        return []


def again(result: Any, keep: tuple[int, ...] = ()) -> None:
    """Change in place what an engine's callable returned: a tensor, or a tuple of tensors and None.

    Results at the positions `keep` stay as they are. Zeros and values that are not finite stay, so do integers.
    """
    results = result if isinstance(result, tuple) else (result,)
    for position, tensor in enumerate(results):
        if tensor is not None and position not in keep and tensor.is_floating_point():
            _round(tensor)


def _round(tensor: Any) -> None:
    import torch

    # The bits of a float, read as an integer, count its representable values: one up is the next larger magnitude.
    bits = tensor.view({2: torch.int16, 4: torch.int32}[tensor.element_size()])
    draw = torch.rand(tensor.shape, device=tensor.device)
    step = (draw < _SHARE / 2).to(bits.dtype) - (draw > 1 - _SHARE / 2).to(bits.dtype)
    bits.add_(step * (tensor.isfinite() & (tensor != 0)))
