"""A dispatch mode for judged calls: fresh memory holds NaN, and the operators that ran are written down."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fk_plugin.bench.tensors import poison_

_FRESH = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided", "empty_permuted")
# Moving and making data is not computing the result.
_PLUMBING = frozenset(
    (*_FRESH, "copy_", "clone", "_to_copy", "contiguous", "fill_", "zero_", "zeros", "ones", "full", "new_zeros",
     "zeros_like", "new_full", "full_like", "detach", "set_", "arange", "lift_fresh", "_local_scalar_dense",
     "scalar_tensor", "resize_", "is_pinned", "record_stream")
)  # fmt: skip


class Watch(TorchDispatchMode):  # type: ignore[misc]  # torch is not typed here
    """While active: poison what torch.empty and its kin return (if asked), and collect names of computing operators."""

    def __init__(self, *, poison: bool, fill: bool = True) -> None:
        super().__init__()
        self.poison, self._fill = poison, fill
        self.computed: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """One operator, run as it is."""
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.split("::")[1]
        if name in _FRESH:
            if self._fill and isinstance(result, torch.Tensor):
                poison_(result)
        elif name not in _PLUMBING and not _is_view(func):
            self.computed.add(name.removesuffix("_"))
        return result


def _is_view(func: Any) -> bool:
    return any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)
