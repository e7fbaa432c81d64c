"""triton_rows on a GPU: every listed workload in bfloat16 and float16 against float64; its ratio to the engines' own.

python -m pytest -m gpu integration_tests/gpu -s
"""

import dataclasses

import pytest
import torch
from triton.testing import do_bench_cudagraph

from fk_plugin import registry
from fk_plugin.task import Workload

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
TASK = registry.task("silu_and_mul")
KERNEL = registry.kernel("silu_and_mul", "triton_rows")


@pytest.mark.parametrize("rounded", [True, False])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("workload", TASK.workloads, ids=lambda w: w.name)
def test_workload(workload: Workload, dtype: str, rounded: bool) -> None:
    x, _ = TASK.make_inputs(dataclasses.replace(workload, dtype=dtype), "cuda", 0)
    half = x.shape[-1] // 2
    gate, up = x[:, :half].double(), x[:, half:].double()
    active = torch.nn.functional.silu(gate)
    want = (active.to(x.dtype).double() if rounded else active) * up
    got = KERNEL.fn(x, rounded)
    # One rounding of the product, or two roundings of which the first may fall either way at a tie.
    limit = want.abs() * torch.finfo(x.dtype).eps * (1.5 if rounded else 1.0) + torch.finfo(x.dtype).smallest_normal
    assert (got.shape, got.dtype) == (want.shape, x.dtype)
    assert ((got.double() - want).abs() <= limit).all()
    differs = (got != TASK.reference(x, rounded)).float().mean().item()
    print(f"{workload.name} {dtype} rounded={rounded}: {differs:.2e} of elements differ from the reference")
    assert differs < 1e-3


def test_more_elements_than_an_int32_counts() -> None:
    """2^31 input elements are 4.3 GB: offsets must not wrap."""
    rows, half = 80_000, 14_336
    x = torch.randn(rows, 2 * half, device="cuda", dtype=torch.bfloat16)
    got = KERNEL.fn(x, True)
    for row in (0, 74_898, rows - 1):
        assert torch.equal(got[row], TASK.reference(x[row : row + 1], True)[0])


def _engines_own() -> dict[str, object]:
    found: dict[str, object] = {"torch": lambda x, out: TASK.reference(x, True)}
    try:
        import vllm._custom_ops  # noqa: F401

        found["vllm._C.silu_and_mul"] = lambda x, out: torch.ops._C.silu_and_mul(out, x)
    except ImportError as error:
        print(f"vLLM's kernel is not here: {error}")
    try:
        from sglang.jit_kernel.activation import silu_and_mul

        found["sglang.jit silu_and_mul"] = lambda x, out: silu_and_mul(x, out)
    except ImportError as error:
        print(f"SGLang's kernel is not here: {error}")
    return found


@pytest.mark.parametrize("workload", TASK.workloads, ids=lambda w: w.name)
def test_ratio_to_the_engines_own(workload: Workload) -> None:
    """Prints, asserts only that both were measured. Hot caches, CUDA graph; `fk bench` is the instrument."""
    x, _ = TASK.make_inputs(workload, "cuda", 0)
    out = torch.empty(x.shape[0], x.shape[1] // 2, device="cuda", dtype=x.dtype)
    mine = do_bench_cudagraph(lambda: KERNEL.fn(x, True, out=out), return_mode="median")
    row = [f"{workload.name}: {mine * 1e3:.2f} us"]
    for name, run in _engines_own().items():
        theirs = do_bench_cudagraph(lambda run=run: run(x, out), return_mode="median")
        assert theirs > 0 and mine > 0
        row.append(f"{name} {theirs * 1e3:.2f} us, ratio {theirs / mine:.2f}")
    print("; ".join(row))
