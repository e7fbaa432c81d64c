"""attach.operator_call: what a site calls, eagerly and under a compiler."""

from typing import Any

import pytest
import torch

from fk_plugin import attach, dispatch, registry
from fk_plugin.adapter import Binding


def _binding(task: str, **arguments: Any) -> Binding:
    return Binding(
        engine="none", versions=">=0", device="cpu", task=task, target="x:Y.z", signature="()", arguments=arguments
    )


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch):
    """(function, arguments) -> its result and the operators of ours in the graph that a compiler sees."""

    def compiled(fn: Any, *args: Any) -> tuple[Any, list[str]]:
        seen: list[str] = []

        def backend(module: torch.fx.GraphModule, _: Any) -> Any:
            seen.extend(str(node.target) for node in module.graph.nodes if "fk" in str(node.target))
            return module.forward

        torch._dynamo.reset()
        return torch.compile(fn, backend=backend, fullgraph=True)(*args), seen

    return compiled


def test_a_compiler_sees_an_operator_that_overwrites_nothing(nodes) -> None:
    """It would copy every view and every graph input that an opaque operator writes."""
    call = attach.operator_call(_binding("fused_add_rms_norm", rounding="once"))
    x, residual, weight = torch.randn(3, 8), torch.randn(3, 8), torch.randn(8)
    (normed, total), seen = nodes(lambda a, b: call(a, b, weight, 1e-5), x.clone(), residual.clone())
    assert seen == ["fk.fused_add_rms_norm.returning"]
    written = x.clone(), residual.clone()
    eager = call(*written, weight, 1e-5)
    assert all(mine is given for mine, given in zip(eager, written, strict=True)), "eagerly it writes in place"
    assert torch.equal(eager[0], normed) and torch.equal(eager[1], total)


def test_an_operator_that_returns_is_called_as_it_is(nodes) -> None:
    call = attach.operator_call(_binding("silu_and_mul", round_activation=False))
    x = torch.randn(3, 8)
    result, seen = nodes(call, x)
    assert seen == ["fk.silu_and_mul"]
    assert torch.equal(result, registry.task("silu_and_mul").reference(x, False))
    assert dispatch.operator(registry.task("silu_and_mul")).written == ()
