"""Case 44: a planning phase was counted into the kernel's time (flashinfer-bench#127).

A declared `prepare` runs once, before the first call and outside the clock. Planning that hides in the call is charged.
"""

from collections.abc import Callable

import torch

from fk_plugin import dispatch, registry
from fk_plugin.bench.checks import Checks
from fk_plugin.bench.rows import Row
from fk_plugin.bench.status import Status
from fk_plugin.kernel import Kernel, Requires

# `_PLAN` is what a plan/run API computes from sizes; the call needs it.
KERNEL = """
import time
from fk_plugin.kernel import Requires, kernel
_PLAN = []
def _plan():
    time.sleep({plan_s})
    _PLAN.append(torch.zeros(()))
{mark}
def scale(x, weight):
    {first}
    return torch.addcmul(_PLAN[-1].to(x.dtype), x, weight).contiguous()
"""
DECLARED = "@kernel('scale', requires=Requires(device='any', dtypes=('float32', 'bfloat16')), prepare=_plan)"
PLAN_S = 0.5
PER_CALL_S = 0.0005
# What is asked here is what the clock charges, and not whether the kernel is honest or the machine quiet.
TIMING_ONLY = {
    "edge_workloads": (), "hidden": 0, "noise": 10.0, "checks": Checks(frozenset({"parent_clock", "clean_baseline"})),
}  # fmt: skip


def seconds(examine: Callable[..., list[Row]], **fields: object) -> float:
    """Seconds per call of KERNEL with these fields, which must pass."""
    (row,) = examine(KERNEL.format(**fields), **TIMING_ONLY)
    assert row.verdict.status in (Status.OK, Status.NOISY), row.verdict
    assert row.candidate_s is not None
    return row.candidate_s


def test_case_44_a_declared_plan_is_not_charged(examine: Callable[..., list[Row]]) -> None:
    fast = seconds(examine, plan_s=0, mark=DECLARED, first="")
    slow = seconds(examine, plan_s=PLAN_S, mark=DECLARED, first="")
    # 0.5 s over the hundred or so calls of a run would be milliseconds for each of them.
    assert slow < 10 * fast and slow < 0.001


def test_case_44_a_plan_inside_every_call_is_charged(examine: Callable[..., list[Row]]) -> None:
    assert seconds(examine, plan_s=PER_CALL_S, mark="", first="_plan()") >= PER_CALL_S


def test_case_44_a_declared_plan_runs_once_and_before_the_first_call() -> None:
    order: list[str] = []

    def silu_and_mul(x: torch.Tensor, round_activation: bool = True) -> torch.Tensor:
        order.append("call")
        return x[..., ::2].contiguous()

    operator = dispatch.operator(registry.task("silu_and_mul"))
    requires = Requires(device="cpu", dtypes=("float32",))
    plan = Kernel(
        task="silu_and_mul", name="k", fn=silu_and_mul, requires=requires, prepare=lambda: order.append("plan")
    )
    operator.use(plan)
    try:
        for _ in range(3):
            torch.ops.fk.silu_and_mul(torch.ones(2, 8))
    finally:
        operator.use(None)
    assert order == ["plan", "call", "call", "call"]
