"""The rotary kernels compiled for a GPU: the rounding order must survive the compiler, eagerly and in a CUDA graph."""

from dataclasses import replace

import pytest
import torch

from fk_plugin import registry

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
KERNELS = {"rotary_embedding": "triton_heads", "rope_kv_write": "triton_tokens"}
CASES = [
    (task, replace(w, dtype=dtype, name=f"{w.name}-{dtype}"))
    for task in map(registry.task, KERNELS)
    for w in task.edge_workloads
    for dtype in ("bfloat16", "float16")
    if w.axes["tokens"]
]


@pytest.mark.parametrize(("task", "workload"), CASES, ids=lambda v: v.name)
def test_bits_equal_the_references(results, task, workload):
    """A sum of two products rounded once may fall on the other side of a tie where the compiler fuses it."""
    fn = registry.kernel(task.name, KERNELS[task.name]).fn
    eager, captured, again = (task.make_inputs(workload, "cuda", 0) for _ in range(3))
    ours, theirs = results(task, fn, eager), results(task, task.reference, again)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fn(*captured)
    graph.replay()
    replayed = results(task, lambda *args: None, captured)
    for mine, replay, expected in zip(ours, replayed, theirs, strict=True):
        assert torch.equal(mine, replay)
        assert int((mine != expected).sum()) <= 0.005 * mine.numel()


ROTATIONS = [(task, workload) for task, workload in CASES if task.name == "rotary_embedding"]


@pytest.mark.parametrize(("task", "workload"), ROTATIONS, ids=lambda v: v.name)
def test_written_elsewhere_it_gives_the_same_bits(results, task, workload):
    fn = registry.kernel(task.name, KERNELS[task.name]).fn
    args, again = (task.make_inputs(workload, "cuda", 0) for _ in range(2))
    outs = tuple(torch.full_like(a, float("nan"), memory_format=torch.contiguous_format) for a in args[:2])
    fn(*args, out=outs)
    for elsewhere, in_place in zip(outs, results(task, fn, again), strict=True):
        assert torch.equal(elsewhere, in_place.view(elsewhere.shape))
