"""What the cases of test_cases_gpu.py share: the device, the kernels, and the judgement against float64.

With TRITON_INTERPRET=1 they run on a CPU, on small sizes and without bfloat16, which Triton's interpreter rounds
wrongly; that checks the tests, not the kernels.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

import torch

from fk_plugin import dispatch, registry
from fk_plugin.kernel import Kernel
from fk_plugin.task import Task

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
DTYPE = torch.float16 if INTERPRETED else torch.bfloat16
KERNELS = {
    "rms_norm": "triton_rows",
    "fused_add_rms_norm": "triton_rows",
    "softmax": "triton_chunks",
    "store_kv_cache": "triton_tiles",
    "silu_and_mul": "triton_rows",
}
ROWWISE = tuple(name for name in KERNELS if name != "store_kv_cache")
if INTERPRETED:
    torch.cuda.device = lambda device: contextlib.nullcontext()  # type: ignore[assignment,misc]


def kernel(name: str) -> Kernel:
    """The Triton kernel of a task."""
    return registry.kernel(name, KERNELS[name])


def small(on_gpu: Any, interpreted: Any) -> Any:
    """The first on a GPU, the second in the interpreter."""
    return interpreted if INTERPRETED else on_gpu


def normal(*shape: int, seed: int = 0, device: str = DEVICE) -> torch.Tensor:
    """Normally distributed values in DTYPE."""
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(shape, generator=generator, device=device).to(DTYPE)


def arguments(name: str, rows: int, width: int, seed: int = 0, device: str = DEVICE) -> tuple[Any, ...]:
    """Arguments of a task: `rows` results of `width` columns each, weights around one."""
    if name == "store_kv_cache":
        return cache_arguments(rows, seed, device)
    if name == "silu_and_mul":
        return normal(rows, 2 * width, seed=seed, device=device), True
    x = normal(rows, width, seed=seed, device=device)
    if name == "softmax":
        return x * 4, torch.float32
    weight = 1 + 0.2 * normal(width, seed=seed + 1, device=device)
    rest = (weight, 1e-6, None, "weight")
    return (x, *rest) if name == "rms_norm" else (x, normal(rows, width, seed=seed + 2, device=device), *rest)


def cache_arguments(tokens: int, seed: int = 0, device: str = DEVICE) -> tuple[torch.Tensor, ...]:
    """Arguments of store_kv_cache, two heads of 64: every token has a slot of its own in caches of zeros."""
    heads, size, page = 2, 64, 16
    key, value = (normal(tokens, heads, size, seed=seed + i, device=device) for i in (0, 1))
    caches = torch.zeros((2, -(-tokens // page), page, heads, size), dtype=DTYPE, device=device)
    generator = torch.Generator(device).manual_seed(seed)
    slots = torch.randperm(caches.shape[1] * page, generator=generator, device=device)[:tokens]
    return key, value, caches[0], caches[1], slots


def copied(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same arguments in contiguous memory of their own."""
    return tuple(a.contiguous().clone() if isinstance(a, torch.Tensor) else a for a in args)


def results(name: str, fn: Any, args: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
    """What `fn` returns, or the arguments it wrote."""
    returned = fn(*args)
    if returned is None:
        return tuple(args[i] for i in dispatch._written(registry.task(name).overloads[0]))
    return returned if isinstance(returned, tuple) else (returned,)


def assert_right(name: str, got: tuple[torch.Tensor, ...], args: tuple[Any, ...]) -> None:
    """Fail unless every row is as near to the task's float64 oracle as the reference's worst row, times 1.25.

    `args` are those before the call. Another order of summation may add 8 units of float32.
    """
    task: Task = registry.task(name)
    reference = results(name, task.reference, copied(args))
    if task.compare == "exact":
        assert all(torch.equal(a, b) for a, b in zip(got, reference, strict=True)), f"{name}: bits differ"
        return
    wide = tuple(a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in copied(args))
    exact = results(name, task.oracle or task.reference, wide)
    for result, theirs, truth in zip(got, reference, exact, strict=True):
        assert (result.shape, result.dtype) == (theirs.shape, theirs.dtype)
        limit = 1.25 * _worst_row(theirs, truth) + 8 * torch.finfo(torch.float32).eps
        worst = _worst_row(result, truth)
        assert worst <= limit, f"{name}: worst row is off by {worst:.3g}, the limit is {limit:.3g}"


def _worst_row(result: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest relative L2 error of a row; NaN if there is one."""
    if not result.numel():
        return 0.0
    return float(((result.double() - exact).norm(dim=-1) / exact.norm(dim=-1).clamp_min(1e-30)).max())


def far_rows(rows: int, width: int, step: int) -> torch.Tensor:
    """[rows, width] views `step` elements apart: the last one lies beyond (rows - 1) * step.

    On a CPU the memory between the rows is never touched, so it is never there; a GPU allocates it.
    """
    base = torch.empty((rows - 1) * step + width, dtype=DTYPE, device=DEVICE)
    return base.as_strided((rows, width), (step, 1))
