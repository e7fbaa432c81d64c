"""The logic of graph timing on a stand-in for CUDA that records what happens in which order.

The stand-in "captures" by running a function once and "replays" by running it again into the same results. Times come
from a counter that only replays advance, so whatever is charged shows.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from fk_plugin.bench import cuda_timer
from fk_plugin.bench.status import Rejected, Status
from fk_plugin.bench.tensors import tensors_in

LOG: list[str] = []


class FakeGraph:
    """Replays by calling again what was called during the capture."""

    def __init__(self) -> None:
        self.again: list[tuple[Callable[[], Any], Any]] = []

    def replay(self) -> None:
        LOG.append("replay")
        for call, result in self.again:
            for old, new in zip(tensors_in(result), tensors_in(call()), strict=True):
                old.copy_(new)


class FakeEvent:
    """Position in the log."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.at = 0


class FakeStream:
    def wait_stream(self, other: Any) -> None:
        LOG.append("wait")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    LOG.clear()

    def record(event: FakeEvent) -> None:
        LOG.append("record")
        event.at = len(LOG)

    class Flush:
        def __call__(self) -> None:
            LOG.append("flush")

    for name, value in {
        "CUDAGraph": FakeGraph, "Event": FakeEvent, "Stream": FakeStream, "current_stream": FakeStream,
        "stream": lambda stream: contextlib.nullcontext(),
        "graph": lambda graph, capture_error_mode: contextlib.nullcontext(),
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, value)
    for name, value in {
        "_record": record, "_elapsed": lambda start, end: float(end.at - start.at), "_wait": lambda event: None,
        "_synchronize": lambda: LOG.append("synchronize"), "_sleep": lambda cycles: LOG.append("sleep"),
        "Flush": Flush,
    }.items():  # fmt: skip
        monkeypatch.setattr(cuda_timer, name, value)
    yield


def capturing(fn: Callable[[torch.Tensor], torch.Tensor], monkeypatch: pytest.MonkeyPatch, *, escape: bool) -> Any:
    """`fn`, remembered by the graph that captures it unless its work escapes."""
    original = cuda_timer._Graph.__init__

    def init(self: Any, function: Any, inputs: Any, values: Any) -> None:
        original(self, function, inputs, values)
        if not escape:
            pairs = zip(inputs, self.results, strict=True)
            self._graph.again = [(lambda f=f: function(*f.args), result) for f, result in pairs]

    monkeypatch.setattr(cuda_timer._Graph, "__init__", init)
    return fn


def values(count: int, start: int = 0) -> list[tuple[torch.Tensor]]:
    return [(torch.full((4,), float(start + n)),) for n in range(count)]


def test_case_43_a_replay_computes_from_the_values_of_this_sample(fake: None, monkeypatch: pytest.MonkeyPatch) -> None:
    double = capturing(lambda x: x * 2, monkeypatch, escape=False)
    timer = cuda_timer.GraphTimer(cold=True)
    for start in (0, 10):
        sample = timer.sample("c", double, values(3, start))
        assert [float(result[0]) for _, result in sample.calls] == [2.0 * (start + n) for n in range(3)]


def test_case_42_a_graph_that_does_nothing_leaves_the_poison(fake: None, monkeypatch: pytest.MonkeyPatch) -> None:
    double = capturing(lambda x: x * 2, monkeypatch, escape=True)
    sample = cuda_timer.GraphTimer(cold=True).sample("c", double, values(3))
    assert all(bool(result.isnan().all()) for _, result in sample.calls)


def test_case_36_38_flush_and_copies_lie_outside_the_events_and_calls_share_a_graph(
    fake: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    double = capturing(lambda x: x * 2, monkeypatch, escape=False)
    timer = cuda_timer.GraphTimer(cold=True)
    timer.sample("c", double, values(4))
    LOG.clear()
    sample = timer.sample("c", double, values(4))
    assert LOG == ["flush", "synchronize", "sleep", "record", "replay", "record", "synchronize"]
    assert sample.seconds == pytest.approx(2 / 1e3 / 4), "the time between the events, shared by four calls"


def test_both_sides_read_the_same_buffers(fake: None, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, set[int]] = {"b": set(), "c": set()}

    def side(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
        def run(x: torch.Tensor) -> torch.Tensor:
            seen[name].add(x.data_ptr())
            return x + 1

        return run

    capturing(lambda x: x, monkeypatch, escape=False)
    timer = cuda_timer.GraphTimer(cold=True)
    timer.sample("b", side("b"), values(3))
    timer.sample("c", side("c"), values(3, 5))
    assert seen["b"] == seen["c"] and len(seen["c"]) == 3


def test_what_cannot_be_captured_is_said_in_one_line(fake: None, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def refuses(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        if len(calls) > 2:
            raise RuntimeError("operation not permitted when stream is capturing\nmore")
        return x

    with pytest.raises(Rejected) as caught:
        cuda_timer.GraphTimer(cold=True).sample("c", refuses, values(2))
    assert caught.value.verdict.status is Status.CRASHED
    assert "cannot be captured" in caught.value.verdict.reason and "more" not in caught.value.verdict.reason


def test_mutating_calls_start_from_fresh_values_each_time(fake: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def add_one(x: torch.Tensor) -> None:
        x.add_(1)

    capturing(lambda x: x, monkeypatch, escape=False)
    timer = cuda_timer.GraphTimer(cold=True)
    for _ in range(3):
        sample = timer.sample("c", add_one, values(2, 7))
        assert [float(args[0][0]) for args, _ in sample.calls] == [8.0, 9.0]
