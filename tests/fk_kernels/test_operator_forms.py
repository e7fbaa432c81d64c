"""Operators whose first form mutates, and the forms derived from it, with kernels that work, refuse and fail."""

import pytest
import torch

from fk_plugin import proof, registry
from fk_plugin.dispatch import operator
from fk_plugin.kernel import Kernel, Requires

CPU = Requires(device="cpu", dtypes=("bfloat16", "float32", "float16"))


@pytest.fixture
def use():
    """Put a kernel in force; afterwards none is."""
    used = []

    def put(task_name, kernel):
        found = operator(registry.task(task_name))
        found.use(kernel)
        used.append(found)
        return found

    yield put
    for found in used:
        found.use(None)


@pytest.fixture
def norm_args():
    task = registry.task("fused_add_rms_norm")
    return task.make_inputs(next(w for w in task.edge_workloads if w.name == "edge-odd-size"), "cpu", 0)


def _expected(args):
    return registry.task("fused_add_rms_norm").overloads[1].reference(*args)


def _counted(run):
    before = proof.snapshot()
    result = run()
    after = proof.snapshot()
    return result, {k: v - before.get(k, 0) for k, v in after.items() if v != before.get(k, 0)}


def _close(ours, theirs):
    assert all((a != b).float().mean() < 0.01 for a, b in zip(ours, theirs, strict=True))


def test_in_place_form_calls_the_kernel_every_time(use, norm_args):
    use("fused_add_rms_norm", registry.kernel("fused_add_rms_norm", "cpu_rows"))
    for _ in range(3):
        expected = _expected(norm_args)
        _, counts = _counted(lambda: torch.ops.fk.fused_add_rms_norm(*norm_args))
        assert counts == {"call|fused_add_rms_norm|cpu_rows|8": 1}
        _close(norm_args[:2], expected)


def test_returning_form_leaves_its_arguments_and_calls_the_kernel(use, norm_args):
    use("fused_add_rms_norm", registry.kernel("fused_add_rms_norm", "cpu_rows"))
    x, residual = norm_args[0].clone(), norm_args[1].clone()
    got, counts = _counted(lambda: torch.ops.fk.fused_add_rms_norm.returning(*norm_args))
    assert counts == {"call|fused_add_rms_norm|cpu_rows|8": 1}
    _close(got, _expected(norm_args))
    assert torch.equal(norm_args[0], x)
    assert torch.equal(norm_args[1], residual)


def test_returning_form_of_a_kernel_without_out_works_on_copies(use, norm_args):
    use("fused_add_rms_norm", registry.kernel("fused_add_rms_norm", "canary"))
    x = norm_args[0].clone()
    got, counts = _counted(lambda: torch.ops.fk.fused_add_rms_norm.returning(*norm_args))
    assert counts == {"call|fused_add_rms_norm|canary|8": 1}
    assert torch.equal(norm_args[0], x)
    assert (got[0] != _expected(norm_args)[0]).any(), "the canary must show"


@pytest.mark.parametrize("form", ["default", "returning"])
def test_no_kernel_runs_the_reference(use, norm_args, form):
    use("fused_add_rms_norm", None)
    x, residual, *rest = norm_args
    expected = _expected(norm_args)
    got, counts = _counted(lambda: getattr(torch.ops.fk.fused_add_rms_norm, form)(x, residual, *rest))
    assert list(counts) == ["fall|fused_add_rms_norm|reference|no kernel in force|8"]
    for ours, theirs in zip(got or (x, residual), expected, strict=True):
        assert torch.equal(ours, theirs)


def _half_way(x, residual, weight, eps, variance_size=None, rounding="weight"):
    x.zero_()
    raise RuntimeError("half way")


def test_first_failure_of_an_overwriting_kernel_leaves_the_arguments_whole(use, norm_args):
    found = use("fused_add_rms_norm", Kernel(task="fused_add_rms_norm", name="half", fn=_half_way, requires=CPU))
    x, residual, *rest = norm_args
    expected = _expected(norm_args)
    torch.ops.fk.fused_add_rms_norm(x, residual, *rest)
    assert torch.equal(x, expected[0])
    assert torch.equal(residual, expected[1])
    assert found.disabled == "kernel error RuntimeError"


def test_later_failure_of_an_overwriting_kernel_is_not_hidden(use, norm_args):
    calls = []

    def late(x, residual, weight, eps, variance_size=None, rounding="weight"):
        calls.append(1)
        if len(calls) > 1:
            _half_way(x, residual, weight, eps)

    use("fused_add_rms_norm", Kernel(task="fused_add_rms_norm", name="late", fn=late, requires=CPU))
    torch.ops.fk.fused_add_rms_norm(*norm_args)
    with pytest.raises(RuntimeError, match="half way"):
        torch.ops.fk.fused_add_rms_norm(*norm_args)


def test_failing_store_falls_back(use):
    def broken(*args):
        raise RuntimeError("broken")

    task = registry.task("store_kv_cache")
    use("store_kv_cache", Kernel(task="store_kv_cache", name="broken", fn=broken, requires=CPU))
    args, expected = (task.make_inputs(task.edge_workloads[4], "cpu", 0) for _ in range(2))
    torch.ops.fk.store_kv_cache(*args)
    task.reference(*expected)
    assert all(torch.equal(a, b) for a, b in zip(args, expected, strict=True))


def test_store_calls_the_kernel_and_returns_nothing(use):
    task = registry.task("store_kv_cache")
    use("store_kv_cache", registry.kernel("store_kv_cache", "cpu_copy"))
    args, expected = (task.make_inputs(task.edge_workloads[4], "cpu", 0) for _ in range(2))
    result, counts = _counted(lambda: torch.ops.fk.store_kv_cache(*args))
    assert result is None
    assert counts == {"call|store_kv_cache|cpu_copy|64": 1}
    task.reference(*expected)
    assert all(torch.equal(a, b) for a, b in zip(args, expected, strict=True))


@pytest.mark.parametrize("task_name", ["rms_norm", "softmax", "silu_and_mul"])
def test_out_form_writes_what_the_first_returns(use, task_name):
    kernel = {"rms_norm": "cpu_rows", "softmax": "cpu_chunks", "silu_and_mul": "cpu_fused"}[task_name]
    use(task_name, registry.kernel(task_name, kernel))
    task, op = registry.task(task_name), getattr(torch.ops.fk, task_name)
    args = task.make_inputs(task.workloads[1], "cpu", 0)
    expected = op(*args)
    out = torch.empty_like(expected)
    _, counts = _counted(lambda: op.out(*args, out=out))
    assert list(counts.values()) == [1]
    assert next(iter(counts)).startswith(f"call|{task_name}|{kernel}|")
    assert torch.equal(out, expected)


def test_failing_out_kernel_falls_back(use):
    def broken(x, dtype=None, *, out=None):
        raise RuntimeError("broken")

    use("softmax", Kernel(task="softmax", name="broken", fn=broken, requires=CPU))
    x = torch.randn(3, 50)
    out = torch.empty_like(x)
    torch.ops.fk.softmax.out(x, out=out)
    assert torch.equal(out, torch.softmax(x, -1))


def test_compiled_without_a_graph_break(use, norm_args):
    use("fused_add_rms_norm", registry.kernel("fused_add_rms_norm", "cpu_rows"))

    def block(x, residual, weight):
        torch.ops.fk.fused_add_rms_norm(x, residual, weight, 1e-5)
        return x + residual

    x, residual, weight = (t.clone() for t in norm_args[:3])
    expected = block(x.clone(), residual.clone(), weight)
    got = torch.compile(block, fullgraph=True, backend="aot_eager")(x, residual, weight)
    assert torch.equal(got, expected)
