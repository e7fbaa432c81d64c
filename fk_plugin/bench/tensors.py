"""Guarded copies of arguments, and tensors as plain bytes in files (a child's pickles are never read)."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

GUARD = 4096  # bytes on either side: a page, and a multiple of every alignment a kernel may ask for
_PATTERN = 0xA5


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors in a result or argument list, depth first through lists and tuples."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (tuple, list)):
        return [t for item in value for t in tensors_in(item)]
    return []


def map_tensors(value: Any, fn: Any) -> Any:
    """The same structure with `fn` applied to each tensor."""
    if isinstance(value, torch.Tensor):
        return fn(value)
    if isinstance(value, (tuple, list)):
        return type(value)(map_tensors(item, fn) for item in value)
    return value


def storage_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """All bytes of the tensor's storage as a flat uint8 view, what lies outside the tensor included."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def _key(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def storages(value: Any) -> dict[int, torch.Tensor]:
    """Unique storages, each as bytes, in order of first appearance."""
    found: dict[int, torch.Tensor] = {}
    for tensor in tensors_in(value):
        found.setdefault(_key(tensor), storage_bytes(tensor))
    return found


def copy_storages(value: Any, dtype_of: Any = None) -> Any:
    """A deep copy that keeps what shares memory sharing it.

    `dtype_of(tensor)` may ask for another dtype; a storage read through one dtype is converted as a whole.
    """
    memo: dict[tuple[int, torch.dtype], torch.Tensor] = {}

    def copy(tensor: torch.Tensor) -> torch.Tensor:
        wanted = tensor.dtype if dtype_of is None else dtype_of(tensor)
        key = (_key(tensor), tensor.dtype)
        if key not in memo:
            flat = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(tensor.untyped_storage())
            memo[key] = flat.to(wanted, copy=True)
        return memo[key].as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    return map_tensors(value, copy)


def upcast(value: Any) -> Any:
    """A copy with floating tensors in float64, sharing kept; integers stay what they are."""
    return copy_storages(value, lambda t: torch.float64 if t.is_floating_point() else t.dtype)


class Fenced:
    """Arguments copied into buffers with a guard zone on either side.

    `args` has the structure, shapes, strides and sharing of the original; its addresses stay the same when other
    values are loaded.
    """

    def __init__(self, args: Any, *, guard: int = GUARD) -> None:
        self._guard = guard
        self._buffers: dict[int, torch.Tensor] = {}
        for key, raw in storages(args).items():
            buffer = torch.full((raw.numel() + 2 * guard,), _PATTERN, dtype=torch.uint8, device=raw.device)
            buffer[guard : guard + raw.numel()] = raw
            self._buffers[key] = buffer
        self.args = map_tensors(args, self._view)
        self._order = list(self._buffers.values())

    def _view(self, tensor: torch.Tensor) -> torch.Tensor:
        buffer = self._buffers[_key(tensor)]
        offset = self._guard // tensor.element_size() + tensor.storage_offset()
        empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        return empty.set_(buffer.untyped_storage(), offset, tensor.shape, tensor.stride())

    def load(self, args: Any) -> None:
        """Copy the values of arguments of the same layout into the buffers."""
        for buffer, raw in zip(self._order, storages(args).values(), strict=True):
            buffer[self._guard : buffer.numel() - self._guard] = raw

    def snapshot(self) -> list[torch.Tensor]:
        """A copy of every buffer, guard zones included."""
        return [buffer.clone() for buffer in self._order]

    def changes(self, before: list[torch.Tensor], writable: list[torch.Tensor]) -> Changes:
        """What differs from `before`, apart from the elements of the `writable` views."""
        outside, inside = 0, []
        for number, (buffer, old) in enumerate(zip(self._order, before, strict=True)):
            differs = buffer != old
            for view in writable:
                if view.untyped_storage()._cdata == buffer.untyped_storage()._cdata and view.numel():
                    _clear(differs, view)
            body = differs[self._guard : differs.numel() - self._guard]
            outside += int(differs.sum()) - int(body.sum())
            if bool(body.any()):
                inside.append(number)
        return Changes(guard_bytes=outside, storages=tuple(inside))

    def owners(self, number: int, names: list[str]) -> list[str]:
        """Names of the arguments that lie in buffer `number`; `names` follow tensors_in(args)."""
        target = self._order[number].untyped_storage()._cdata
        found = zip(tensors_in(self.args), names, strict=True)
        return sorted({name for tensor, name in found if tensor.untyped_storage()._cdata == target})


def _clear(differs: torch.Tensor, view: torch.Tensor) -> None:
    width = view.element_size()
    shape, stride = (*view.shape, width), (*(s * width for s in view.stride()), 1)
    differs.as_strided(shape, stride, view.storage_offset() * width).fill_(False)


@dataclass(frozen=True, kw_only=True)
class Changes:
    """Bytes changed in guard zones, and the buffers changed where nothing was declared."""

    guard_bytes: int
    storages: tuple[int, ...]


def poison_(tensor: torch.Tensor) -> torch.Tensor:
    """Fill with what no honest result holds: NaN, or a large odd integer."""
    if tensor.is_floating_point() or tensor.is_complex():
        return tensor.fill_(float("nan"))
    if tensor.dtype == torch.bool:
        return tensor.fill_(True)
    return tensor.fill_(torch.iinfo(tensor.dtype).max - 2)


def describe(tensor: torch.Tensor) -> dict[str, Any]:
    """dtype, shape, strides and device in JSON types."""
    return {
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": list(tensor.shape),
        "stride": list(tensor.stride()),
        "device": tensor.device.type,
    }


def write(tensor: torch.Tensor, file: Path) -> dict[str, Any]:
    """Store the elements in row-major order; returns what `read` needs."""
    raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8).cpu() if tensor.numel() else None
    file.write_bytes(b"" if raw is None else memoryview(raw.numpy()))
    return {"file": file.name, **describe(tensor)}


def read(folder: Path, entry: dict[str, Any]) -> torch.Tensor:
    """The tensor of an entry, on the CPU, and its file is deleted.

    Raises:
        ValueError: the entry does not fit its file (a child may write anything).
    """
    dtype = getattr(torch, str(entry["dtype"]), None)
    shape = [int(n) for n in entry["shape"]]
    file = folder / Path(str(entry["file"])).name
    if not isinstance(dtype, torch.dtype) or any(n < 0 for n in shape) or not file.is_file():
        raise ValueError(f"no tensor of {entry['dtype']} {shape} in {file.name}")
    count = 1
    for n in shape:
        count *= n
    size = count * dtype.itemsize
    if file.stat().st_size != size:
        raise ValueError(f"{file.name} has {file.stat().st_size} bytes, expected {size} for {entry['dtype']} {shape}")
    if size == 0:
        file.unlink()
        return torch.empty(shape, dtype=dtype)
    with file.open("r+b") as handle:
        mapped = mmap.mmap(handle.fileno(), size, access=mmap.ACCESS_COPY)
    file.unlink()
    return torch.frombuffer(mapped, dtype=dtype).reshape(shape)


def row_chunks(rows: int, width: int, limit: int = 1 << 23) -> Iterator[slice]:
    """Slices of at most `limit` elements, at least one row each, so that float64 copies stay small."""
    step = max(1, limit // max(width, 1))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))
