"""Faults that users of GPU kernels reported, each as a test named after its report, with our Triton kernels.

    python -m pytest -m gpu integration_tests/gpu/test_cases_gpu.py

About a minute and less than 24 GB on an H200. See case_support.py for a run on a CPU.
"""

import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fk_plugin import dispatch, proof, registry

sys.path.insert(0, str(Path(__file__).resolve().parent))
import case_support as cases

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not (torch.cuda.is_available() or cases.INTERPRETED), reason="needs an NVIDIA GPU"),
]
ROWWISE = pytest.mark.parametrize("name", cases.ROWWISE)
EVERY = pytest.mark.parametrize("name", cases.KERNELS)
# Three rows this far apart end beyond 2^31 elements: 4.3 GB of bfloat16.
STEP = 2**30
LAYOUTS = ("strided", "sliced", "transposed", "interleaved", "head_major", "aliased")
# The largest grid axis 1 or 2, and the token count at which a report's grid passed it.
MANY_ROWS = cases.small((65_537, 305_001), (257,))


@pytest.fixture(autouse=True)
def memory_is_given_back() -> Any:
    """Two tests that each hold several GB must not add up."""
    yield
    if not cases.INTERPRETED:
        torch.cuda.empty_cache()


@ROWWISE
def test_case_15_a_row_alone_equals_the_row_in_a_batch(name: str) -> None:
    """vLLM#48271: a block size that followed the number of tokens changed results at 256."""
    run, width = cases.kernel(name).fn, cases.small(2048, 64)
    args = cases.arguments(name, 257, width)

    def rows(start: int, stop: int) -> tuple[torch.Tensor, ...]:
        cut = (a[start:stop].clone() if isinstance(a, torch.Tensor) and a.dim() == 2 else a for a in args)
        return cases.results(name, run, tuple(cut))

    whole = {count: rows(0, count) for count in (255, 256, 257)}
    for row in (0, 100, 254, 255, 256):
        alone = rows(row, row + 1)
        for count, batch in whole.items():
            if row < count:
                assert all(torch.equal(a[0], b[row]) for a, b in zip(alone, batch, strict=True)), (row, count)


@pytest.mark.parametrize("tokens", cases.small((1, 512, 513), (1, 3)))
@pytest.mark.parametrize("hidden", cases.small((2048, 3072, 4096, 7168), (96, 128)))
@ROWWISE
def test_case_17_every_hidden_size_and_token_count(name: str, hidden: int, tokens: int) -> None:
    """vLLM PR 44692: right at hidden size 4096 only; NaN at 2048 and 3072, wrong at 7168 from 512 tokens."""
    args = cases.arguments(name, tokens, hidden)
    got = cases.results(name, cases.kernel(name).fn, cases.copied(args))
    assert all(bool(result.isfinite().all()) for result in got)
    cases.assert_right(name, got, args)


@ROWWISE
def test_case_19_the_same_call_gives_the_same_bits(name: str) -> None:
    """FLA#945: a configuration picked at run time gave different bits from run to run."""
    run, args = cases.kernel(name).fn, cases.arguments(name, cases.small(513, 5), cases.small(4096, 96))
    first = cases.results(name, run, cases.copied(args))
    for _ in range(cases.small(20, 3)):
        again = cases.results(name, run, cases.copied(args))
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@ROWWISE
def test_case_21_rows_beyond_2_31_elements_are_read(name: str) -> None:
    """FLA#1080: offsets of 32 bits wrapped, and the kernel read and wrote somewhere else without an error."""
    width = cases.small(4096, 96)
    plain = cases.arguments(name, 3, width)
    x = cases.far_rows(3, plain[0].shape[1] * 2, STEP)
    far: list[Any] = list(plain)
    for i, value in enumerate(plain):
        if isinstance(value, torch.Tensor) and value.dim() == 2:  # x, and the residual beside it in the same rows
            far[i] = x[:, : value.shape[1]] if i == 0 else x[:, value.shape[1] :]
            far[i].copy_(value)
    got = cases.results(name, cases.kernel(name).fn, tuple(far))
    cases.assert_right(name, tuple(g.contiguous() for g in got), plain)


def test_case_21_columns_beyond_2_31_elements_are_read() -> None:
    """The same fault along the other axis: a transposed input of softmax."""
    x = cases.far_rows(3, 4, STEP).t()
    values = cases.normal(4, 3)
    x.copy_(values)
    got = cases.results("softmax", cases.kernel("softmax").fn, (x, torch.float32))
    cases.assert_right("softmax", got, (values, torch.float32))


@ROWWISE
@pytest.mark.skipif(cases.INTERPRETED, reason="results of 4.3 GB")
def test_case_21_rows_beyond_2_31_elements_are_written(name: str) -> None:
    """The same fault in results: one row, expanded, in; 2^31 elements and three rows more out."""
    width, dtype = 4096, cases.DTYPE
    rows = 2**31 // width + 3
    one = tuple(dtype if a is torch.float32 else a for a in cases.arguments(name, 1, width))
    args = tuple(a.expand(rows, -1) if isinstance(a, torch.Tensor) and a.dim() == 2 else a for a in one)
    count = 2 if name == "fused_add_rms_norm" else 1
    outs = [torch.full((rows, width), torch.nan, dtype=dtype, device=cases.DEVICE) for _ in range(count)]
    cases.kernel(name).fn(*args, out=outs[0] if len(outs) == 1 else tuple(outs))
    for result in outs:
        for row in (1, rows // 2, rows - 4, rows - 3, rows - 2, rows - 1):
            assert torch.equal(result[row], result[0]), row
    cases.assert_right(name, tuple(result[rows - 1 :] for result in outs), one)


def test_case_21_cache_slots_beyond_2_31_elements_are_written() -> None:
    """Keys are read from, and written to, places beyond 2^31 elements."""
    heads, size, page = 2, 64, 4
    both = cases.far_rows(3, 4 * page * heads * size, STEP)
    tokens = cases.normal(3, 2, heads, size)
    key, value = (both[:, i * heads * size :][:, : heads * size].view(3, heads, size) for i in (0, 1))
    key.copy_(tokens[:, 0])
    value.copy_(tokens[:, 1])
    area = both[:, 2 * page * heads * size :]
    caches = [area[:, i * page * heads * size :][:, : page * heads * size] for i in (0, 1)]
    caches = [cache.view(3, page, heads, size).zero_() for cache in caches]
    slots = torch.tensor([9, 2, -1], device=cases.DEVICE)
    cases.kernel("store_kv_cache").fn(key, value, *caches, slots)
    for cache, new in zip(caches, (tokens[:, 0], tokens[:, 1]), strict=True):
        assert torch.equal(cache[2, 1], new[0]) and torch.equal(cache[0, 2], new[1])
        assert int((cache != 0).flatten(-2).any(dim=-1).sum()) == 2, "no other slot is written"


@EVERY
def test_case_22_strided_inputs_are_right_or_refused(name: str) -> None:
    """LightLLM#1467: a pass forgot the stride of the last axis."""
    task, kernel = registry.task(name), cases.kernel(name)
    taken = 0
    for workload in task.edge_workloads:
        if workload.layout not in LAYOUTS:
            continue
        if cases.INTERPRETED and workload.dtype == "bfloat16":
            workload = dataclasses.replace(workload, dtype="float16")
        args, before = (task.make_inputs(workload, cases.DEVICE, 0) for _ in range(2))
        reason = kernel.guard(*args) if kernel.guard else None
        if reason is not None:
            assert "contiguous" in reason, reason
            continue
        taken += 1
        cases.assert_right(name, cases.results(name, kernel.fn, args), before)
    assert taken, "every workload with strides was refused"


@EVERY
def test_case_29_nothing_in_nothing_out(name: str) -> None:
    """sglang#38773: a batch without tokens crashed."""
    task = registry.task(name)
    workload = next(w for w in task.edge_workloads if w.name == "edge-no-rows")
    args = task.make_inputs(workload, cases.DEVICE, 0)
    before = cases.copied(args)
    for result in cases.results(name, cases.kernel(name).fn, args):
        assert name == "store_kv_cache" or result.numel() == 0
    for after, then in zip(args, before, strict=True):
        assert not isinstance(after, torch.Tensor) or torch.equal(after, then)


@pytest.mark.parametrize("rows", MANY_ROWS)
@EVERY
def test_case_31_more_rows_than_a_grid_axis_takes(name: str, rows: int) -> None:
    """vLLM PR 43599: rows lay on a grid axis that ends at 65,535, so a long prefill could not be launched."""
    args = cases.arguments(name, rows, cases.small(128, 32))
    cases.assert_right(name, cases.results(name, cases.kernel(name).fn, cases.copied(args)), args)


@EVERY
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_case_34_the_tensor_decides_the_device_not_the_current_one(name: str) -> None:
    """unsloth PR 6912, triton#2441: a launch on the current device read memory of another."""
    args = cases.arguments(name, 33, 4096, device="cuda:1")
    with torch.cuda.device(0):
        got = cases.results(name, cases.kernel(name).fn, cases.copied(args))
        assert torch.cuda.current_device() == 0
        torch.cuda.synchronize(1)
    assert all(result.device == torch.device("cuda", 1) for result in got)
    cases.assert_right(name, got, args)


@EVERY
def test_case_65_compiles_without_a_graph_break_to_the_same_bits(name: str) -> None:
    """flashinfer#978: a kernel broke the graph under Dynamo."""
    operator, call = dispatch.operator(registry.task(name)), getattr(torch.ops.fk, name)
    args = cases.arguments(name, 33, 96)
    torch._dynamo.reset()
    operator.use(cases.kernel(name), strict=not cases.INTERPRETED)  # interpreted, the operator takes the reference
    before = proof.snapshot()
    try:
        eager = cases.results(name, call, cases.copied(args))
        backend = cases.small("inductor", "aot_eager")
        compiled = torch.compile(lambda *a: call(*a), fullgraph=True, backend=backend)
        got = cases.results(name, compiled, cases.copied(args))
    finally:
        operator.use(None)
    assert all(torch.equal(a, b) for a, b in zip(got, eager, strict=True))
    made = {key.split("|")[0]: value for key, value in proof.snapshot().items() if before.get(key, 0) != value}
    assert set(made) == {cases.small("call", "fall")}, made
