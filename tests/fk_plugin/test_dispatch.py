"""The operator: right kernel, guards inside, named fallback with counted reason, errors by mode, compilers."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fk_plugin import dispatch, proof, registry
from fk_plugin.errors import StrictError
from fk_plugin.kernel import Kernel, Requires

TASK = registry.task("silu_and_mul")
ALL = ("float32", "float16", "bfloat16", "float64")


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[dispatch.Operator]:
    proof.open_folder(tmp_path)
    operator = dispatch.operator(TASK)
    yield operator
    operator.use(None)
    operator.set_fallback("reference", TASK.reference)
    proof.open_folder(None)


def _kernel(fn: object, **changes: object) -> Kernel:
    fields = {"task": "silu_and_mul", "name": "k", "fn": fn, "requires": Requires(device="cpu", dtypes=ALL)}
    return Kernel(**{**fields, **changes})  # type: ignore[arg-type]


def _usage() -> proof.Usage:
    return proof.usage(proof.snapshot())["silu_and_mul"]


def test_the_kernel_in_force_runs_and_is_counted_by_bucket(operator: dispatch.Operator) -> None:
    operator.use(_kernel(lambda x, r=True: torch.full((x.shape[0], x.shape[1] // 2), 7.0)))
    assert torch.ops.fk.silu_and_mul(torch.ones(3, 8)).unique().tolist() == [7.0]
    torch.ops.fk.silu_and_mul(torch.ones(5, 8))
    assert _usage().calls == {"k": 2}
    assert _usage().buckets == {4: 1, 8: 1}


@pytest.mark.parametrize(
    ("kernel", "x", "reason"),
    [
        (None, torch.ones(2, 8), "no kernel in force"),
        (_kernel(lambda x: x, requires=Requires(device="cpu", dtypes=("float16",))), torch.ones(2, 8), "dtype float32"),
        (_kernel(lambda x: x, guard=lambda x, *_: "too many rows"), torch.ones(2, 8), "too many rows"),
        (
            _kernel(lambda x: x, requires=Requires(device="cpu", dtypes=ALL, modules=("not_there",))),
            torch.ones(2, 8),
            "it needs the package not_there, which is not installed",
        ),
    ],
)
def test_a_refused_call_runs_the_named_fallback_and_counts_the_reason(
    operator: dispatch.Operator, kernel: Kernel | None, x: torch.Tensor, reason: str
) -> None:
    operator.use(kernel)
    operator.set_fallback("engine.own", lambda x, r=True: x[..., 4:] + 1)
    assert torch.equal(torch.ops.fk.silu_and_mul(x), x[..., 4:] + 1)
    assert _usage().fallbacks == {("engine.own", reason): 1}
    assert _usage().calls == {}


def test_a_cuda_kernel_on_a_machine_without_gpu_says_so(operator: dispatch.Operator) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    operator.use(_kernel(lambda x: x, requires=Requires(device="cuda", dtypes=ALL)))
    assert operator.disabled == "it needs an NVIDIA GPU, and none is visible"
    with pytest.raises(StrictError, match="cannot run here: it needs an NVIDIA GPU"):
        operator.use(_kernel(lambda x: x, requires=Requires(device="cuda", dtypes=ALL)), strict=True)


def _broken(x: torch.Tensor, r: bool = True) -> torch.Tensor:
    raise RuntimeError("out of luck")


def test_auto_disables_a_kernel_that_raises_and_goes_on(operator: dispatch.Operator, tmp_path: Path) -> None:
    operator.use(_kernel(_broken))
    x = torch.randn(2, 8)
    for _ in range(2):
        assert torch.equal(torch.ops.fk.silu_and_mul(x), TASK.reference(x))
    assert _usage().fallbacks == {("reference", "kernel error RuntimeError"): 2}
    events = [e for e in proof_events(tmp_path) if e["event"] == "kernel_error"]
    assert len(events) == 1 and "out of luck" in events[0]["message"]


def test_strict_ends_the_run_when_a_kernel_raises(operator: dispatch.Operator) -> None:
    operator.use(_kernel(_broken), strict=True)
    with pytest.raises(StrictError, match="silu_and_mul=k failed: RuntimeError: out of luck"):
        torch.ops.fk.silu_and_mul(torch.randn(2, 8))


def test_a_failing_preparation_disables_the_kernel_with_the_reason(operator: dispatch.Operator) -> None:
    def prepare() -> None:
        raise OSError("no compiler")

    operator.use(_kernel(lambda x: x, prepare=prepare))
    assert operator.disabled == "its preparation failed: OSError: no compiler"


def test_the_mutating_form_writes_out_with_and_without_kernel_support(operator: dispatch.Operator) -> None:
    def with_out(x: torch.Tensor, r: bool = True, *, out: torch.Tensor | None = None) -> torch.Tensor:
        assert out is not None
        return out.fill_(5.0)

    for fn, value in ((with_out, 5.0), (lambda x, r=True: torch.full((2, 4), 6.0), 6.0)):
        operator.use(_kernel(fn))
        out = torch.zeros(2, 4)
        torch.ops.fk.silu_and_mul.out(torch.ones(2, 8), out=out)
        assert out.unique().tolist() == [value]
    assert _usage().calls == {"k": 2}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(0, 8), (1, 8), (5, 6), (2, 3, 8), (8,)])
def test_opcheck(operator: dispatch.Operator, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randn(shape, dtype=dtype)
    torch.library.opcheck(torch.ops.fk.silu_and_mul.default, (x, True))
    torch.library.opcheck(torch.ops.fk.silu_and_mul.default, (x, False))
    out = torch.empty(*shape[:-1], shape[-1] // 2, dtype=dtype)
    torch.library.opcheck(torch.ops.fk.silu_and_mul.out, (x, True), {"out": out})


def test_opcheck_on_a_slice(operator: dispatch.Operator) -> None:
    torch.library.opcheck(torch.ops.fk.silu_and_mul.default, (torch.randn(4, 24)[:, 4:20], True))


def test_one_graph_for_every_token_count_and_the_guard_still_decides_inside(operator: dispatch.Operator) -> None:
    """A guard on tokens that was evaluated while tracing would be burned into the graph."""
    operator.use(_kernel(TASK.reference, guard=lambda x, *_: "over 8 tokens" if x.shape[0] > 8 else None))
    compiled = torch.compile(lambda x: torch.ops.fk.silu_and_mul(x * 2) + 1, fullgraph=True, dynamic=True)
    for tokens in (64, 4, 9, 8):
        x = torch.randn(tokens, 16)
        torch.testing.assert_close(compiled(x), TASK.reference(x * 2) + 1)
    assert _usage().calls == {"k": 2}
    assert _usage().fallbacks == {("reference", "over 8 tokens"): 2}


def proof_events(folder: Path) -> list[dict[str, object]]:
    from fk_plugin.counters import read_events

    return list(read_events(folder))
