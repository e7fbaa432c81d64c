"""Is the plugged engine as accurate as the engine itself? Log-probabilities against a measured noise floor.

Prefill is judged by teacher forcing: the log-probabilities that both sides give to the same prompts. Decode is judged
by greedy generation: log-probabilities of the tokens both sides chose, up to the first one that differs; there, the
other side's token must be a near-tie; then generation goes on from the shared prefix.
The floor is what the baseline differs from itself when the batch is composed differently; where a kernel differs by
more, also what one more rounding of the engine's own results changes (see fk_plugin.rounding).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from fk_plugin.e2e.protocol import Completion

# Another batch composition changes the order of sums inside GEMMs and attention; another kernel changes every rounding
# of its own output, in every layer, so an honest one differs by more than the floor. Measured with an honest
# silu_and_mul that rounds where the baseline does not: 1.7 times the floor (SmolLM2-135M on CPU, vLLM, whose compiler
# rounds once), 1.6 times (the same, SGLang), 1.0 times (generated Llama-3.1-8B, vLLM on H200).
MEAN_FACTOR, MAX_FACTOR = 2.5, 4.0
# One more rounding of the engine's own results is the very thing by which an honest kernel differs, so there is less to
# add. Measured on a CPU without AVX-512 with an honest silu_and_mul: 1.0 times (SmolLM2-135M, SGLang), 0.9 times
# (generated tiny Llama, vLLM compiled); one that is 5 % off on every other element 2.0 times (SmolLM2-135M, SGLang).
ROUNDING_MEAN_FACTOR, ROUNDING_MAX_FACTOR = 1.5, 2.5
# Where an engine gives the same bits in every batch composition the measured floor is 0. One rounding of a bf16 hidden
# state (2^-9 relative) moves a log-probability of size 2 to 10 by about this much.
SMALLEST_MEAN, SMALLEST_MAX = 0.002, 0.05
# Timed passes are not judged token by token; their greedy answers may change this many times as often as those of the
# judged pass, and this much more. The slack is one change in ten tokens, a wrong decode changes at least every second.
RATE_FACTOR, RATE_SLACK = 3.0, 0.1
# Below this spread of log-probabilities the tokens are all alike and no check can fail.
SMALLEST_SPREAD = 1.0


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Absolute differences of log-probabilities (nats) over `count` tokens, and greedy choices that differ."""

    mean: float
    largest: float
    count: int
    changed: int = 0

    def to_json(self) -> dict[str, float | None]:
        """Plain numbers; JSON has no infinity, so what could not be measured or is infinite becomes null."""
        mean, largest = (x if math.isfinite(x) else None for x in (self.mean, self.largest))
        return {"mean": mean, "max": largest, "tokens": self.count, "changed": self.changed}


def _difference(values: Sequence[float], changed: int = 0) -> Difference:
    if not values:
        return Difference(mean=math.inf, largest=math.inf, count=0, changed=changed)
    if any(math.isnan(v) for v in values):
        return Difference(mean=math.inf, largest=math.inf, count=len(values), changed=changed)
    return Difference(mean=statistics.fmean(values), largest=max(values), count=len(values), changed=changed)


def prefill(a: Sequence[Completion], b: Sequence[Completion]) -> Difference:
    """Teacher-forced difference over the same prompts."""
    values = []
    for left, right in zip(a, b, strict=True):
        if len(left.prompt) != len(right.prompt):
            raise ValueError(f"prompts of {len(left.prompt)} and {len(right.prompt)} log-probabilities do not compare")
        values += [_apart(x, y) for x, y in zip(left.prompt, right.prompt, strict=True)]
    return _difference(values)


def _apart(x: float, y: float) -> float:
    # Equal infinities agree; a NaN on either side stays NaN and fails.
    return 0.0 if x == y else abs(x - y)


def first_change(a: Completion, b: Completion) -> int:
    """Index of the first generated token that differs; the shorter length if none does."""
    for index, (x, y) in enumerate(zip(a.tokens, b.tokens, strict=False)):
        if x != y:
            return index
    return min(len(a.tokens), len(b.tokens))


def decode(a: Sequence[Completion], b: Sequence[Completion]) -> Difference:
    """Difference of the chosen tokens' log-probabilities up to the first change, and of a's choice at the change.

    Where b's list of most probable tokens does not hold a's choice, b gives it at most the least of the list, and the
    difference to that is taken: the least it can be.
    """
    values = []
    changed = 0
    for left, right in zip(a, b, strict=True):
        until = first_change(left, right)
        for index in range(min(until + 1, len(left.tokens), len(right.tokens))):
            token = left.tokens[index]
            least = min(right.top[index].values())
            values.append(_apart(left.top[index][token], right.top[index].get(token, least)))
        changed += until < min(len(left.tokens), len(right.tokens))
    return _difference(values, changed)


def change_rate(reference: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> float:
    """Changed tokens for each token compared, each request up to its first change; 1.0 where nothing can be compared.

    Greedy answers of an honest kernel change at near-ties only, so seldom; those of a wrong one at once.
    """
    compared = changed = 0
    for left, right in zip(reference, answers, strict=True):
        for x, y in zip(left, right, strict=False):
            compared += 1
            if x != y:
                changed += 1
                break
    return changed / compared if compared else 1.0


def spread(completions: Sequence[Completion]) -> float:
    """Standard deviation of the prompts' token log-probabilities (nats)."""
    values = [v for c in completions for v in c.prompt if math.isfinite(v)]
    return statistics.pstdev(values) if len(values) > 1 else 0.0


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """One side against the baseline, prefill or decode, with the limits that were applied.

    `floor` is the noise between batch compositions, `rounding` what one more rounding costs, where it was asked for.
    """

    what: str
    difference: Difference
    floor: Difference
    rounding: Difference | None = None

    @property
    def mean_limit(self) -> float:
        """Largest mean difference that passes."""
        rounding = self.rounding.mean if self.rounding else 0.0
        return max(MEAN_FACTOR * self.floor.mean, ROUNDING_MEAN_FACTOR * rounding, SMALLEST_MEAN)

    @property
    def max_limit(self) -> float:
        """Largest single difference that passes."""
        rounding = self.rounding.largest if self.rounding else 0.0
        return max(MAX_FACTOR * self.floor.largest, ROUNDING_MAX_FACTOR * rounding, SMALLEST_MAX)

    @property
    def judgeable(self) -> bool:
        """Whether the floors were measured at all; without them neither passing nor failing means anything."""
        measured = (self.floor,) if self.rounding is None else (self.floor, self.rounding)
        return all(d.count > 0 and math.isfinite(d.mean) for d in measured)

    @property
    def passed(self) -> bool:
        """Whether both limits hold. NaN and infinite differences never pass."""
        return (
            self.judgeable
            and self.difference.mean <= self.mean_limit
            and self.difference.largest <= self.max_limit
            and math.isfinite(self.difference.largest)
        )

    def sentence(self) -> str:
        """The figures in words."""
        return (
            f"{self.what}: mean {self.difference.mean:.2g} (limit {self.mean_limit:.2g}), "
            f"max {self.difference.largest:.2g} (limit {self.max_limit:.2g}) over {self.difference.count} tokens"
        )


def merge(parts: Sequence[Difference]) -> Difference:
    """Several differences as one, weighted by their tokens."""
    count = sum(p.count for p in parts)
    if not count:
        return _difference([])
    return Difference(
        mean=sum(p.mean * p.count for p in parts if p.count) / count,
        largest=max(p.largest for p in parts if p.count),
        count=count,
        changed=sum(p.changed for p in parts),
    )


def reread(generated: Sequence[Completion], prompted: Sequence[Completion]) -> Difference:
    """Log-probabilities of generated tokens, as decoded and as the end of a prompt that holds them."""
    values = []
    for left, right in zip(generated, prompted, strict=True):
        count = len(left.tokens)
        chosen = [left.top[i][token] for i, token in enumerate(left.tokens)]
        values += [_apart(x, y) for x, y in zip(chosen, right.prompt[-count:], strict=True)]
    return _difference(values)


def largest(*differences: Difference) -> Difference:
    """The difference with the largest mean, with the largest single difference of all."""
    first = max(differences, key=lambda d: d.mean)
    return Difference(mean=first.mean, largest=max(d.largest for d in differences), count=first.count)
