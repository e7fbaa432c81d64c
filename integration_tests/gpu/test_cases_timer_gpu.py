"""Faults of GPU timers that users reported, each as a test named after its report, with the sandbox's own timers.

python -m pytest -m gpu integration_tests/gpu/test_cases_timer_gpu.py
"""

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fk_plugin.bench.cuda_timer import EagerTimer, GraphTimer

sys.path.insert(0, str(Path(__file__).resolve().parent))
import case_support as cases

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]
MIB = 1 << 20


def sets(count: int, size: int) -> list[tuple[torch.Tensor]]:
    """`count` argument sets of one tensor of `size` bytes."""
    return [(torch.randn(size // 4, device="cuda"),) for _ in range(count)]


def seconds(timer: Any, fn: Callable[..., Any], values: list[tuple[Any, ...]]) -> float:
    """Median seconds per call of nine samples."""
    return statistics.median(timer.sample("c", fn, values).seconds for _ in range(9))


def read(x: torch.Tensor) -> torch.Tensor:
    """Reads every byte and writes next to nothing."""
    return x.sum()


def test_case_36_a_read_that_fits_in_l2_is_slower_cold_than_warm() -> None:
    """triton PR 8384, tritonbench PR 519: graphs were timed with a hot L2, and were said to be cold."""
    # Two partitions may each hold a copy of what both read, so that half of the cache is what surely fits.
    size = torch.cuda.get_device_properties(0).L2_cache_size // 3 // MIB * MIB
    cold, warm = (seconds(GraphTimer(cold=which), read, sets(4, size)) for which in (True, False))
    assert warm < 0.87 * cold, f"{size // MIB} MiB: cold {cold * 1e6:.2f} us, warm {warm * 1e6:.2f} us"


def test_case_36_a_cold_read_of_64_mib_takes_its_bytes_and_no_flush() -> None:
    """helion PR 2986: the flush was counted. Three times the cache take several times as long as the read itself."""
    size = 64 * MIB
    cold, warm = (seconds(GraphTimer(cold=which), read, sets(4, size)) for which in (True, False))
    source = torch.randn(size // 4, device="cuda")
    others = [torch.randn(size // 4, device="cuda") for _ in range(7)]  # 512 MiB in turn: no cache holds them
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(50):
        for x in (source, *others):
            read(x)
    torch.cuda.synchronize()
    wanted = (time.perf_counter() - start) / 400
    text = f"cold {cold * 1e6:.1f} us, warm {warm * 1e6:.1f} us, by the host's clock {wanted * 1e6:.1f} us"
    assert 0.85 * wanted < cold < 1.25 * wanted, text
    assert warm < 1.03 * cold, text


def test_case_38_time_on_the_host_is_no_time_of_the_kernel() -> None:
    """triton PR 1893, 6066: what the host does before a launch was read as the kernel's time."""

    def slow_host(x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.002)
        return x + 1

    values = sets(4, 4096)
    assert seconds(GraphTimer(cold=True), slow_host, values) < 1e-4
    assert seconds(EagerTimer(cold=True), slow_host, values) >= 0.002, "eager execution does pay for it"


def test_case_38_calls_share_the_cost_of_a_graph_launch() -> None:
    """Inductor PR 196413: one short call to a graph carries the whole launch."""

    def tiny(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    one, many = (seconds(GraphTimer(cold=True), tiny, sets(count, 4096)) for count in (1, 16))
    eager = seconds(EagerTimer(cold=True), tiny, sets(16, 4096))
    assert many < one and many < eager, f"alone {one * 1e6:.2f} us, of 16 {many * 1e6:.2f}, eager {eager * 1e6:.2f}"
    few, more = (seconds(GraphTimer(cold=True), read, sets(count, 128 * MIB)) for count in (1, 4))
    assert abs(few / more - 1) < 0.15, "long calls cost the same alone"


@pytest.mark.parametrize("name", cases.ROWWISE)
def test_case_43_a_replay_computes_from_new_inputs(name: str) -> None:
    """SageAttention PR 371, pytorch#114048: a launch that escaped the capture left old results in every replay."""
    run, timer = cases.kernel(name).fn, GraphTimer(cold=True)
    found = []
    for seed in (0, 100):
        values = [cases.arguments(name, 65, 576, seed=seed + 10 * i) for i in range(3)]
        sample = timer.sample("c", run, values)
        for value, (args, returned) in zip(values, sample.calls, strict=True):
            got = cases.results(name, lambda *_, kept=returned: kept, args)
            wanted = cases.results(name, run, cases.copied(value))
            assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))
            found.append(got[0])
    assert not any(torch.equal(a, b) for i, a in enumerate(found) for b in found[i + 1 :])


def test_case_42_a_graph_without_work_leaves_the_poison() -> None:
    """helion PR 2817: a cached stream gave an empty graph, 8 ns and a speedup of 1850."""
    sample = GraphTimer(cold=True).sample("c", torch.empty_like, sets(2, 4096))
    assert all(bool(result.isnan().all()) for _, result in sample.calls)
