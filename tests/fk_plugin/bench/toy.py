"""Small tasks for tests of the sandbox: fast to judge, and with the property that a test needs."""

import os
import time
from dataclasses import replace
from typing import NoReturn

import torch

from fk_plugin.task import Baseline, Cost, Overload, Task, Workload


def scale(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x * weight by column, in x's dtype."""
    return x * weight


def _inputs(workload: Workload, device: str, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator(device).manual_seed(seed)
    rows, width = workload.axes["tokens"], workload.axes["width"]
    dtype = getattr(torch, workload.dtype)
    wide = torch.randn(rows, 2 * width, generator=generator, device=device).to(dtype)
    weight = torch.rand(width, generator=generator, device=device).to(dtype) + 0.5
    if workload.layout == "strided":
        return wide[:, ::2], weight
    if workload.layout == "sliced":
        return wide[:, width:], weight
    return wide[:, :width].contiguous(), weight


def _cost(workload: Workload) -> Cost:
    elements = workload.axes["tokens"] * workload.axes["width"]
    width = torch.finfo(getattr(torch, workload.dtype)).bits // 8
    return Cost(bytes=2 * elements * width, flops=elements)


def work(name: str, tokens: int = 64, width: int = 512, phase: str = "decode", **more: str) -> Workload:
    """A workload of the toy tasks."""
    axes = {"tokens": tokens, "width": width}
    return Workload(name=name, axes=axes, source="test", phase=phase, **{"dtype": "float32", **more})


SCALE = Task(
    name="scale",
    summary="multiply columns by a weight",
    overloads=(
        Overload(
            schema="scale(Tensor x, Tensor weight) -> Tensor",
            reference=scale,
            fake=lambda x, weight: torch.empty(x.shape, dtype=x.dtype, device=x.device),
        ),
        Overload(
            schema="scale.out(Tensor x, Tensor weight, *, Tensor(a!) out) -> ()",
            reference=lambda x, weight, *, out: out.copy_(x * weight),
            fake=lambda x, weight, *, out: None,
        ),
    ),
    workloads=(work("w64"), work("w256", tokens=256)),
    edge_workloads=(
        work("no-rows", tokens=0, phase="edge"),
        work("one-row", tokens=1, phase="edge"),
        work("odd", tokens=7, width=33, phase="edge"),
        work("strided", tokens=9, width=40, phase="edge", layout="strided"),
        work("sliced", tokens=9, width=40, phase="edge", layout="sliced"),
        work("half", tokens=9, width=40, phase="edge", dtype="bfloat16"),
    ),
    make_inputs=_inputs,
    cost=_cost,
    tokens=lambda x, *_: x.shape[0],
)


def add_to(total: torch.Tensor, x: torch.Tensor) -> None:
    """total += x."""
    total.add_(x)


def _aliased(workload: Workload, device: str, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator(device).manual_seed(seed)
    both = torch.randn(workload.axes["tokens"], 2 * workload.axes["width"], generator=generator, device=device)
    return both[:, : workload.axes["width"]], both[:, workload.axes["width"] :]


ADD_TO = Task(
    name="add_to",
    summary="add in place; both arguments are halves of one buffer",
    overloads=(
        Overload(schema="add_to(Tensor(a!) total, Tensor x) -> ()", reference=add_to, fake=lambda total, x: None),
    ),
    workloads=(work("w64"),),
    make_inputs=_aliased,
    cost=_cost,
    tokens=lambda total, *_: total.shape[0],
)


def _dies(*_: object) -> NoReturn:
    os._exit(7)


def _dawdles(*_: object) -> None:
    time.sleep(1000)


BASELINES = replace(
    SCALE,
    baselines=(
        Baseline(name="dies", engine="vllm", load=lambda device: _dies),
        Baseline(name="dawdles", engine="vllm", load=lambda device: _dawdles),
        Baseline(name="dies at load", engine="vllm", load=_dies),
    ),
)
