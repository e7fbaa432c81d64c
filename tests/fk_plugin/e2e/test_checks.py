"""Every check of a comparison fails on what it is for, and on missing data."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from fk_plugin import proof
from fk_plugin.e2e import checks
from fk_plugin.e2e.accuracy import Difference, Judgement
from fk_plugin.e2e.protocol import Completion
from fk_plugin.e2e.run import Request, Result
from fk_plugin.e2e.sides import Judged, Process, Start

SITES = {"model.layers.0.mlp.act_fn": 1, "model.layers.1.mlp.act_fn": 1}


def _process(**changes: Any) -> Process:
    usage = proof.usage({"call|t|k|8": 20})
    fields = {"pid": 1, "forwards": 10, "bound": {"t": list(SITES)}, "usage": usage}
    return Process(**{**fields, "device_forwards": 0, "device_usage": {}, **changes})


def _start(*processes: Process, **changes: Any) -> Start:
    start = Start(label="s", start_seconds=1.0, described={}, processes=list(processes), served=4)
    answer = Completion(tokens=[5, 6, 7, 8])
    start.judged = Judged(prefill=[], decode=[answer, answer])
    start.timed = [[answer.tokens, answer.tokens]]
    start.called_buckets, start.judged_buckets = {"t": {8}}, {"t": {8, 16}}
    return dataclasses.replace(start, **changes)


def _result(plugged: Start, baseline: Start | None = None, **changes: Any) -> Result:
    request = Request(engine="e", model="m", kernels="t=k", requests=1, input_len=2, output_len=1, starts=1, passes=1,
                      eager=False, dtype="bfloat16", max_batched_tokens=8, folder=Path())  # fmt: skip
    off = baseline or _start(_process(usage={}, bound={}))
    return Result(request=request, device="cpu", described={}, kernels={"t": "k"}, trace={"t": SITES},
                  baseline=[off], plugged=[plugged], **changes)  # fmt: skip


def _verdicts(result: Result) -> dict[str, bool]:
    return {c.name: c.passed for c in checks.use(result)}


def test_a_clean_run_passes_everything() -> None:
    assert all(_verdicts(_result(_start(_process()))).values())


@pytest.mark.parametrize(
    ("plugged", "failed"),
    [
        (_start(_process(bound={"t": ["model.layers.0.mlp.act_fn"]})), {"bound, t", "called, t"}),
        (_start(_process(bound={})), {"bound, t", "called, t"}),
        (_start(_process(usage={})), {"called, t", "kernel ran, t"}),
        (_start(_process(usage=proof.usage({"call|t|k|8": 19}))), {"called, t"}),
        (_start(_process(usage=proof.usage({"call|t|k|8": 21}))), {"called, t"}),
        (_start(_process(usage=proof.usage({"fall|t|own|too many|8": 20}))), {"kernel ran, t"}),
        (_start(_process(forwards=0, usage={})), {"called, t", "kernel ran, t"}),
        (_start(), {"bound, t", "called, t", "kernel ran, t"}),
        (_start(_process(), _process(pid=2, usage={})), {"called, t"}),
        (_start(_process(), cached=1), {"no prefix cache"}),
        (_start(_process(), called_buckets={"t": {8, 512}}), {"judged, t"}),
        (_start(_process(), called_buckets={}), {"judged, t"}),
        (_start(_process(), timed=[]), {"timed passes"}),
        (_start(_process(), timed=[[[5, 6, 7, 8]] * 2, [[5, 9, 9, 9]] * 2]), {"timed passes"}),
        (_start(_process(), judged=None), {"timed passes"}),
    ],
)
def test_each_fault_fails_its_check_and_no_other(plugged: Start, failed: set[str]) -> None:
    assert {name for name, passed in _verdicts(_result(plugged)).items() if not passed} == failed


@pytest.mark.parametrize(("calls", "passed"), [(20, True), (19, True), (0, False), (21, False)])
def test_sites_that_the_engine_may_take_are_an_upper_limit(calls: int, passed: bool) -> None:
    usage = proof.usage({"call|t|k|8": calls})
    result = _result(_start(_process(usage=usage, shared={"t": "a pass fuses some"})))
    assert _verdicts(result)["called, t"] == passed
    assert "of 20 at most (a pass fuses some)" in next(c.detail for c in checks.use(result) if c.name == "called, t")


@pytest.mark.parametrize("off", [_start(_process(bound={})), _start(), _start(_process(usage={}, forwards=0))])
def test_the_baseline_must_report_and_must_not_call_us(off: Start) -> None:
    assert _verdicts(_result(_start(_process()), off))["plugin off"] is False


def test_reasons_for_fallbacks_are_named() -> None:
    result = _result(_start(_process(usage=proof.usage({"fall|t|own|too many|8": 20}))))
    detail = next(c.detail for c in checks.use(result) if c.name == "kernel ran, t")
    assert detail == "0 calls by the kernel; fallbacks: bound, never used: 20 x too many -> own"


def test_on_a_gpu_the_device_counts_decide() -> None:
    """Under graph replay the host sees fewer calls than forwards x sites; the device sees all of them."""
    host_short = _process(usage=proof.usage({"call|t|k|8": 2}))
    whole = _process(device_forwards=7, device_usage=proof.usage({"call|t|k|8": 13, "fall|t|own|x|8": 1}))
    assert _verdicts(_result(_start(host_short), replayed=_start(whole)))["called, t"]
    short = _process(device_forwards=7, device_usage=proof.usage({"call|t|k|8": 13}))
    assert not _verdicts(_result(_start(host_short), replayed=_start(short)))["called, t"]
    none = _process(device_forwards=0, device_usage={})
    assert not _verdicts(_result(_start(host_short), replayed=_start(none)))["called, t"]


def _judgement(mean: float) -> Judgement:
    floor = Difference(mean=0.01, largest=0.1, count=10)
    return Judgement(what="prefill", difference=Difference(mean=mean, largest=mean, count=10), floor=floor)


def test_a_canary_must_run_and_must_be_refused_by_both() -> None:
    start = _start(_process())
    assert checks.canary("t", start, [_judgement(9.0), _judgement(9.0)]).passed
    assert not checks.canary("t", start, [_judgement(9.0), _judgement(0.01)]).passed
    no_floor = Judgement(what="x", difference=Difference(mean=9.0, largest=9.0, count=1),
                         floor=Difference(mean=float("inf"), largest=float("inf"), count=0))  # fmt: skip
    assert not checks.canary("t", start, [no_floor]).passed
    unused = checks.canary("t", _start(_process(usage={})), [_judgement(9.0)])
    assert not unused.passed and "never called" in unused.detail


def test_tokens_that_are_all_alike_give_no_verdict() -> None:
    assert not checks.spread(0.4).passed
    assert checks.spread(1.3).passed
