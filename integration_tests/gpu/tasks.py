"""Tasks for checks of the sandbox itself on a GPU: copies of known size, and our kernels against themselves."""

import time
from dataclasses import replace

import torch

from fk_plugin import registry
from fk_plugin.task import Baseline, Cost, Overload, Task, Workload


def copy(x: torch.Tensor) -> torch.Tensor:
    """x in fresh memory."""
    return x.clone()


def _inputs(workload: Workload, device: str, seed: int) -> tuple[torch.Tensor]:
    if workload.layout == "slow":
        time.sleep(0.01)  # a preparation that must not be charged to the kernel
    generator = torch.Generator(device).manual_seed(seed)
    return (torch.randn(workload.axes["tokens"], 1 << 18, generator=generator, device=device),)


def _copy(layout: str) -> tuple[Workload, ...]:
    return tuple(
        Workload(
            name=f"{layout}-{rows}-MiB", axes={"tokens": rows}, dtype="float32", source="test", phase="prefill",
            layout=layout,
        )
        for rows in (64, 128, 256)
    )  # fmt: skip


COPY = Task(
    name="copy",
    summary="copy N MiB (2 N are moved)",
    overloads=(Overload(schema="copy(Tensor x) -> Tensor", reference=copy, fake=lambda x: torch.empty_like(x)),),
    workloads=(*_copy("contiguous"), *_copy("slow")),
    make_inputs=_inputs,
    cost=lambda workload: Cost(bytes=2 * (workload.axes["tokens"] << 20), flops=0),
    tokens=lambda x: x.shape[0],
)


def _against_itself(task: str, kernel: str) -> Task:
    def load(device: str):  # type: ignore[no-untyped-def]
        return registry.kernel(task, kernel).fn

    return replace(registry.task(task), baselines=(Baseline(name="itself", engine="test", load=load),))


SILU_AND_MUL = _against_itself("silu_and_mul", "triton_rows")
RMS_NORM = _against_itself("rms_norm", "triton_rows")
SOFTMAX = _against_itself("softmax", "triton_chunks")
