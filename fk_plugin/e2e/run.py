"""The whole comparison: trace, baseline and plugged starts in turn, canaries, checks."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fk_plugin import registry
from fk_plugin.adapter import Adapter
from fk_plugin.e2e import checks, models, prompts, sides
from fk_plugin.e2e.accuracy import Difference, Judgement, decode, prefill, spread
from fk_plugin.e2e.checks import Check
from fk_plugin.e2e.client import EngineFailed
from fk_plugin.e2e.protocol import Options
from fk_plugin.e2e.resolve import resolve
from fk_plugin.e2e.sides import Job, Start
from fk_plugin.e2e.stats import Ratio, ratio
from fk_plugin.errors import UsageError

CANARY = "canary"


@dataclass(frozen=True, kw_only=True)
class Request:
    """What `fk e2e` was asked for. `kernels` is in FK_KERNELS' form."""

    engine: str
    model: str
    kernels: str
    requests: int
    input_len: int
    output_len: int
    starts: int
    passes: int
    eager: bool
    dtype: str
    max_batched_tokens: int
    folder: Path

    def __post_init__(self) -> None:
        for name in ("requests", "input_len", "output_len", "starts", "passes", "max_batched_tokens"):
            value = getattr(self, name)
            least = 2 if name == "input_len" else 1
            if value < least:
                raise UsageError(f"--{name.replace('_', '-')} must be at least {least}, got {value}.")


@dataclass(kw_only=True)
class Result:
    """Everything a report needs."""

    request: Request
    device: str
    described: Mapping[str, Any]
    kernels: Mapping[str, str]  # task -> kernel
    trace: Mapping[str, Mapping[str, int]]
    baseline: list[Start] = field(default_factory=list)
    plugged: list[Start] = field(default_factory=list)
    replayed: Start | None = None  # counted on the device, on a GPU only
    ratio: Ratio | None = None
    judgements: list[Judgement] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether every check holds."""
        return all(c.passed for c in self.checks)


def run(request: Request, progress: Callable[[str], None]) -> Result:
    """Carry out the comparison.

    Raises:
        UsageError: a wrong name or value, or a missing engine.
        EngineFailed: an engine process died, hung or refused.
    """
    adapter = registry.adapter(request.engine)
    if adapter.installed() is None:
        raise UsageError(
            f"{request.engine} is not installed beside fk-plugin; "
            f"install one of {', '.join(adapter.distributions)} into this environment, or run scripts/quickstart."
        )
    kernels = _plan(request, adapter)
    model = models.resolve(request.model, progress)
    device = _device()
    job = _job(request, adapter, model, device, progress)
    on = {"FK_PLUGIN": "auto", "FK_KERNELS": _portable(request.kernels), "FK_COMPILED": "bind"}
    result = Result(
        request=request,
        device=device,
        described={},
        kernels=kernels,
        trace=sides.trace(job),
    )
    _alternate(job, result, on)
    if not all(j.passed for j in result.judgements):
        rounding = sides.rounding_floor(job, kernels)
        result.judgements = [replace(j, rounding=rounding) for j in result.judgements]
    if device == "cuda":
        result.replayed = _replayed(job, on)
    result.ratio = ratio([s.passes for s in result.baseline], [s.passes for s in result.plugged])
    _check(job, result)
    return result


def _plan(request: Request, adapter: Adapter) -> dict[str, str]:
    """Kernel name by task. The kernels' files are loaded elsewhere."""
    kernels = resolve(_portable(request.kernels)) if request.kernels else {}
    if not kernels:
        raise UsageError(
            "no kernel is in force, so there is nothing to compare; name one with --kernels task=kernel "
            "(`fk list kernels` shows them)."
        )
    for task in kernels:
        if not any(b.task == task for b in adapter.bindings):
            raise UsageError(f"{adapter.stand_down(task, '', '')}; `fk list bindings` shows what can be bound.")
        if CANARY not in registry.kernels(task)[0]:
            raise UsageError(f"task {task} has no kernel called {CANARY}, so its accuracy could not be judged.")
    return kernels


def _portable(kernels: str) -> str:
    """The same choices with absolute paths; engine processes run in another folder."""
    parts = []
    for part in filter(None, (p.strip() for p in kernels.split(","))):
        task, _, name = part.partition("=")
        file, colon, function = name.partition(":")
        parts.append(f"{task}={Path(file).expanduser().resolve()}{colon}{function}" if ".py" in file else part)
    return ",".join(parts)


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _job(request: Request, adapter: Adapter, model: Path, device: str, progress: Callable[[str], None]) -> Job:
    launcher: Any = pkgutil.resolve_name(adapter.launcher)
    # Room for a request, and for going on from a changed token with as much output again.
    length = max(request.input_len + 2 * request.output_len, request.max_batched_tokens) + 8
    options = Options(
        model=str(model),
        dtype=request.dtype,
        max_model_len=length,
        max_batched_tokens=request.max_batched_tokens,
        max_sequences=max(request.requests, 16),
        eager=request.eager,
    )
    return Job(
        engine=request.engine,
        options=options,
        environment=launcher.environment(device),
        prompts=prompts.requests(model, count=request.requests, length=request.input_len, seed=0),
        output_len=request.output_len,
        sweep=prompts.sweep(model, longest=request.max_batched_tokens, seed=0),
        passes=request.passes,
        folder=request.folder,
        progress=progress,
    )


def _alternate(job: Job, result: Result, on: Mapping[str, str]) -> None:
    """Baseline and plugged starts in turn; the first of each is judged."""
    floor: Difference | None = None
    for number in range(1, result.request.starts + 1):
        label = f"baseline {number}"
        with job.start(label, {"FK_PLUGIN": "off"}) as engine:
            start = sides.begin(engine, label)
            sides.throughput(job, engine, start)
            if floor is None:
                sides.judge(job, engine, start)
                floor = sides.noise_floor(job, engine, start)
            sides.finish(engine, start)
        result.baseline.append(start)
        label = f"plugged {number}"
        with job.start(label, on) as engine:
            start = sides.begin(engine, label)
            sides.throughput(job, engine, start)
            if number == 1:
                sides.judge(job, engine, start)
                result.judgements = _judgements(job, engine, start, result.baseline[0], floor)
            sides.finish(engine, start)
        result.plugged.append(start)
        result.described = start.described


def _replayed(job: Job, on: Mapping[str, str]) -> Start:
    """A start that counts on the device: graph replays run no Python, so host counters miss them."""
    label = "plugged, counting on the device"
    with job.start(label, {**on, "FK_DEVICE_COUNTERS": "1"}) as engine:
        start = sides.begin(engine, label)
        sides.serve_on_device(job, engine, start)
        sides.finish(engine, start)
    return start


def _judgements(job: Job, engine: Any, start: Start, baseline: Start, floor: Difference) -> list[Judgement]:
    assert start.judged is not None and baseline.judged is not None
    decoded = sides.compare_decode(job, engine, start, baseline.judged.decode)
    return [
        Judgement(what="prefill", difference=prefill(baseline.judged.prefill, start.judged.prefill), floor=floor),
        Judgement(what="decode", difference=decoded, floor=floor),
    ]


def _check(job: Job, result: Result) -> None:
    judged = result.baseline[0].judged
    assert judged is not None
    result.checks += checks.use(result)
    result.checks += [
        Check(name=f"accuracy, {j.what}", passed=j.passed, detail=j.sentence()) for j in result.judgements
    ]
    result.checks.append(checks.spread(spread(judged.prefill)))
    for task in result.kernels:
        result.checks.append(_canary(job, result, task))


def _canary(job: Job, result: Result, task: str) -> Check:
    """Run the deliberately wrong kernel of `task`: the same checks must refuse it."""
    label = f"canary of {task}"
    baseline = result.baseline[0].judged
    assert baseline is not None
    try:
        with job.start(label, {"FK_PLUGIN": "auto", "FK_KERNELS": f"{task}={CANARY}", "FK_COMPILED": "bind"}) as engine:
            start = sides.begin(engine, label)
            mine = sides.judge(job, engine, start)
            sides.finish(engine, start)
    except EngineFailed as error:  # what was measured before must not be lost with it
        return Check(name=f"canary, {task}", passed=False, detail=f"no accuracy verdict: {error}")
    found = {"prefill": prefill(baseline.prefill, mine.prefill), "decode": decode(baseline.decode, mine.decode)}
    judgements = [replace(j, difference=found[j.what]) for j in result.judgements]  # the limits that were applied
    return checks.canary(task, start, judgements)
