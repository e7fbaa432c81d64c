"""silu_and_mul: bit for bit what both engines' PyTorch code computes; mirrors and workloads are what they claim."""

import inspect
import pkgutil

import pytest
import torch

from fk_plugin import registry
from fk_tasks.activation import silu_and_mul


def _native(target: str) -> object:
    pytest.importorskip(target.split(".")[0])
    function = pkgutil.resolve_name(target)
    return function if "vllm" in target else lambda x: function(None, x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("shape", [(0, 8), (1, 3072), (257, 3072), (2, 3, 10)])
@pytest.mark.parametrize(
    "target",
    [
        "vllm.model_executor.layers.activation:SiluAndMul.forward_native",
        "sglang.srt.layers.activation:SiluAndMul.forward_native",
    ],
)
def test_reference_equals_the_engines_own_code(target: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    native = _native(target)
    torch.manual_seed(1)
    x = (torch.randn(shape) * 4).to(dtype)
    assert torch.equal(silu_and_mul(x, True), native(x))  # type: ignore[operator]


def test_the_two_rounding_orders_differ_and_each_is_what_it_says() -> None:
    torch.manual_seed(2)
    x = (torch.randn(64, 1024) * 4).bfloat16()
    gate, up = x.double().chunk(2, -1)
    active = torch.nn.functional.silu(gate)
    once, twice = silu_and_mul(x, False), silu_and_mul(x, True)
    assert (once != twice).float().mean() > 0.05
    # One rounding is as near as bf16 gets (float32 arithmetic in between may break a tie the other way).
    assert (once != (active * up).bfloat16()).float().mean() < 1e-3
    assert (twice != (active.bfloat16().double() * up).bfloat16()).float().mean() < 1e-3


@pytest.mark.parametrize("task", sorted(registry.tasks()))
def test_mirrors_have_the_signatures_they_claim(task: str) -> None:
    for mirror in registry.task(task).mirrors:
        pytest.importorskip(mirror.engine)
        found = inspect.signature(inspect.unwrap(pkgutil.resolve_name(mirror.target)))
        assert str(found) == mirror.signature, mirror.target


@pytest.mark.parametrize("task", sorted(registry.tasks()))
def test_workloads_give_inputs_and_positive_cost(task: str) -> None:
    of = registry.task(task)
    for workload in of.workloads:
        cost = of.cost(workload)
        assert cost.bytes > 0 and cost.flops >= 0  # a copy moves bytes and computes nothing
    smallest = min(of.workloads, key=lambda w: of.cost(w).bytes)
    first, again, other = (of.make_inputs(smallest, "cpu", seed) for seed in (1, 1, 2))
    assert torch.equal(first[0], again[0]) and not torch.equal(first[0], other[0])
    rows = smallest.axes.get("tokens") or smallest.axes["rows"]
    assert of.tokens(*first) == rows


def test_cost_counts_two_reads_and_one_write() -> None:
    task = registry.task("silu_and_mul")
    workload = next(w for w in task.workloads if w.axes == {"tokens": 8, "intermediate": 14336})
    assert task.cost(workload).bytes == 8 * 14336 * 3 * 2
