"""One engine start of a comparison: what is asked of it, and what it proves about itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fk_plugin import proof, rounding
from fk_plugin.e2e import accuracy
from fk_plugin.e2e.client import Engine
from fk_plugin.e2e.protocol import Completion, Options
from fk_plugin.errors import FkError

_TOP = 20  # log-probabilities asked for at each generated token, the most vLLM gives by default
_CONTINUATIONS = 4
_ALONE = 8


@dataclass(frozen=True, kw_only=True)
class Job:
    """What every start of one comparison is asked to do."""

    engine: str
    options: Options
    environment: Mapping[str, str]
    prompts: list[list[int]]
    output_len: int
    sweep: list[list[int]]
    passes: int
    folder: Path
    progress: Callable[[str], None]
    start_limit: float = 900.0
    answer_limit: float = 900.0

    def start(self, label: str, environment: Mapping[str, str], options: Options | None = None) -> Engine:
        """Start the engine; its logs and counters go into a folder named after the label."""
        return Engine(
            self.engine,
            options or self.options,
            {**self.environment, **environment},
            self.folder / label.replace(" ", "-"),
            label=f"{self.engine}, {label}",
            progress=self.progress,
            start_limit=self.start_limit,
            answer_limit=self.answer_limit,
        )

    def start_traced(self, label: str) -> Engine:
        """Start the unplugged engine, eager, with its own calls at every bindable site counted."""
        options = Options(**{**self.options.to_json(), "eager": True})
        return self.start(label, {"FK_PLUGIN": "off", "FK_TRACE": "1"}, options)


@dataclass(frozen=True, kw_only=True)
class Process:
    """What one engine process that holds the model says of itself."""

    pid: int
    forwards: int
    bound: Mapping[str, list[str]]  # module names by task
    usage: Mapping[str, proof.Usage]
    # The same, kept on the device, where graph replays count too; empty unless FK_DEVICE_COUNTERS was set.
    device_forwards: int
    device_usage: Mapping[str, proof.Usage]
    shared: Mapping[str, str] = field(default_factory=dict)  # task -> why the engine may compute some sites itself


@dataclass(frozen=True, kw_only=True)
class Judged:
    """The answers one start is judged by."""

    prefill: list[Completion]
    decode: list[Completion]


@dataclass(kw_only=True)
class Start:
    """The record of one engine start."""

    label: str
    start_seconds: float
    described: Mapping[str, Any]
    passes: list[float] = field(default_factory=list)  # tokens/s, prompt and generated tokens alike
    timed: list[list[list[int]]] = field(default_factory=list)  # generated tokens by timed pass and request
    cached: int = 0  # prompt tokens served from a prefix cache, all requests together
    served: int = 0
    judged: Judged | None = None
    called_buckets: Mapping[str, set[int]] = field(default_factory=dict)  # by task, while serving
    judged_buckets: Mapping[str, set[int]] = field(default_factory=dict)
    processes: list[Process] = field(default_factory=list)
    # Device counts at the first request, by pid. Start-up is left out: while a graph is captured its calls are
    # recorded and not executed, although the forward around a piecewise graph is.
    device_base: Mapping[int, dict[str, int]] = field(default_factory=dict)
    stood_down: list[str] = field(default_factory=list)

    def take(self, completions: list[Completion]) -> list[Completion]:
        """Note how many requests were served and how many of their tokens came from a cache."""
        self.cached += sum(c.cached for c in completions)
        self.served += len(completions)
        return completions


def begin(engine: Engine, label: str) -> Start:
    """The record of a start that has become ready."""
    return Start(label=label, start_seconds=engine.start_seconds, described=engine.described)


def throughput(job: Job, engine: Engine, start: Start) -> None:
    """One untimed pass, then the timed ones; all requests at once, greedy, without log-probabilities."""
    tokens = sum(len(p) for p in job.prompts) + len(job.prompts) * job.output_len
    before = _buckets(engine)
    for number in range(job.passes + 1):
        answer = engine.generate(job.prompts, max_tokens=job.output_len)
        start.take(answer.completions)
        if number:
            start.passes.append(tokens / answer.seconds)
            start.timed.append([c.tokens for c in answer.completions])
    start.called_buckets = _moved(before, _buckets(engine))


def judge(job: Job, engine: Engine, start: Start) -> Judged:
    """The answers accuracy is judged by: every sweep prompt alone, and all requests decoded together."""
    before = _buckets(engine)
    prefill = []
    for prompt in job.sweep:
        prefill += start.take(engine.generate([prompt], max_tokens=1, prompt_logprobs=True).completions)
    decode = start.take(engine.generate(job.prompts, max_tokens=job.output_len, logprobs=_TOP).completions)
    start.judged = Judged(prefill=prefill, decode=decode)
    start.judged_buckets = _moved(before, _buckets(engine))
    return start.judged


def noise_floor(job: Job, engine: Engine, start: Start) -> accuracy.Difference:
    """What this engine differs from itself when the same tokens are computed in another batch.

    The largest of three: all sweep prompts together instead of alone, generated tokens read again as a prompt, and
    some requests decoded one at a time instead of all together. No single one would do for every engine: past some
    size a GEMM gives a row the same bits whatever stands beside it, so that one engine shows its noise only between
    one row and many, and another only between a prompt and a decode step.
    """
    assert start.judged is not None
    together = start.take(engine.generate(job.sweep, max_tokens=1, prompt_logprobs=True).completions)
    texts = [prompt + answer.tokens for prompt, answer in zip(job.prompts, start.judged.decode, strict=True)]
    again = start.take(engine.generate(texts, max_tokens=1, prompt_logprobs=True).completions)
    alone = []
    for prompt in job.prompts[:_ALONE]:
        alone += start.take(engine.generate([prompt], max_tokens=job.output_len, logprobs=_TOP).completions)
    return accuracy.largest(
        accuracy.prefill(start.judged.prefill, together),
        accuracy.reread(start.judged.decode, again),
        accuracy.decode(start.judged.decode[: len(alone)], alone),
    )


def rounding_floor(job: Job, tasks: Iterable[str]) -> accuracy.Difference:
    """What one more rounding of the engine's own results at the sites of `tasks` changes.

    Asked where a kernel differs by more than the noise floor: an engine whose every batch gives the same bits has
    hardly any noise, and yet no other kernel gives its bits. Both answers come from one unplugged, eager start.
    """
    label = "unplugged engine, one more rounding"
    with job.start_traced(label) as engine:
        start = begin(engine, label)
        plain = judge(job, engine, start)
        rounding.ask(engine.proof, tasks)
        again = judge(job, engine, start)
        decoded = compare_decode(job, engine, start, plain.decode)
        finish(engine, start)
    return accuracy.largest(accuracy.prefill(plain.prefill, again.prefill), decoded)


def compare_decode(job: Job, engine: Engine, start: Start, baseline: list[Completion]) -> accuracy.Difference:
    """Greedy answers against the baseline's; after a change, on from the baseline's prefix, a few times."""
    assert start.judged is not None
    mine = list(start.judged.decode)
    prompts = list(job.prompts)
    theirs = list(baseline)
    parts = [accuracy.decode(theirs, mine)]
    for _ in range(_CONTINUATIONS):
        behind = [(p, t, accuracy.first_change(t, m)) for p, t, m in zip(prompts, theirs, mine, strict=True)]
        rest = [(p + t.tokens[: at + 1], _tail(t, at + 1)) for p, t, at in behind if at + 1 < len(t.tokens)]
        if not rest:
            break
        prompts, theirs = [p for p, _ in rest], [t for _, t in rest]
        longest = max(len(t.tokens) for t in theirs)
        mine = start.take(engine.generate(prompts, max_tokens=longest, logprobs=_TOP).completions)
        parts.append(accuracy.decode(theirs, mine))
    return accuracy.merge(parts)


def _tail(completion: Completion, at: int) -> Completion:
    return Completion(tokens=completion.tokens[at:], top=completion.top[at:])


def finish(engine: Engine, start: Start) -> None:
    """Read what every process of the start proves."""
    counts = engine.counts()
    for event in engine.events():
        if event["event"] == "model":
            mine = counts[event["pid"]]
            base = start.device_base.get(event["pid"], {})
            served = {key: n - base.get(key, 0) for key, n in proof.on_device(mine).items()}
            start.processes.append(
                Process(
                    pid=event["pid"],
                    forwards=proof.forwards(mine),
                    bound=event["bound"],
                    shared=event.get("shared", {}),
                    usage=proof.usage(mine),
                    device_forwards=proof.forwards(served),
                    device_usage=proof.usage(served),
                )
            )
        elif event["event"] in ("stood_down", "unavailable"):
            sentence = event.get("message") or f"{event['task']}={event['kernel']}: {event['reason']}"
            if sentence not in start.stood_down:
                start.stood_down.append(sentence)
    if not start.processes:
        raise FkError(
            f"no process of {start.label} reported a model. Expected the plugin to be loaded by the engine; "
            "run `fk doctor` to see what stands in the way."
        )


def trace(job: Job) -> dict[str, dict[str, int]]:
    """Calls of every bindable site in one forward of the unplugged, eager engine: task -> site -> calls.

    Raises:
        FkError: a site is not called equally often in every forward, so no expectation follows.
    """
    with job.start_traced("trace of the unplugged engine") as engine:
        engine.generate(job.prompts[:2], max_tokens=4)
        start = begin(engine, "trace")
        finish(engine, start)
        counts = engine.counts()
    sites: dict[str, dict[str, int]] = {}
    for process in start.processes[:1]:
        for task, calls in proof.engine_calls(counts[process.pid]).items():
            for site, number in calls.items():
                each, left = divmod(number, process.forwards)
                if left:
                    raise FkError(
                        f"{task} at {site} ran {number} times in {process.forwards} forwards of the unplugged engine, "
                        "which is no whole number per forward; calls cannot be predicted for this model."
                    )
                sites.setdefault(task, {})[site] = each
    return sites


def serve_on_device(job: Job, engine: Engine, start: Start) -> None:
    """Serve and judge once with counters on the device, so that buckets of replayed graphs count too."""
    before = _buckets(engine, on_device=True)
    start.device_base = {pid: proof.on_device(counts) for pid, counts in engine.counts().items()}
    start.take(engine.generate(job.prompts, max_tokens=job.output_len).completions)
    served = _buckets(engine, on_device=True)
    judge(job, engine, start)
    start.called_buckets = _moved(before, served)
    start.judged_buckets = _moved(served, _buckets(engine, on_device=True))


def _buckets(engine: Engine, *, on_device: bool = False) -> dict[str, dict[int, int]]:
    if on_device:
        engine.flush_device_counters()
    total: dict[str, dict[int, int]] = {}
    for counts in engine.counts().values():
        for task, usage in proof.usage(proof.on_device(counts) if on_device else counts).items():
            mine = total.setdefault(task, {})
            for size, calls in usage.buckets.items():
                mine[size] = mine.get(size, 0) + calls
    return total


def _moved(before: dict[str, dict[int, int]], after: dict[str, dict[int, int]]) -> dict[str, set[int]]:
    return {
        task: {size for size, calls in sizes.items() if calls > before.get(task, {}).get(size, 0)}
        for task, sizes in after.items()
    }
