"""What can be said about a kernel on a workload. A speedup exists only with OK."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Status(str, Enum):
    """The closed set of outcomes; the comment says what was seen."""

    OK = "OK"
    DECLINED = "DECLINED"  # its guard or requirements refuse these arguments; production would run the fallback
    NOISY = "NOISY"  # correct, but the samples spread too far for a number
    LOAD_ERROR = "LOAD_ERROR"  # the file, symbol, signature or preparation failed before any call
    CRASHED = "CRASHED"  # it raised, or its process died
    TIMEOUT = "TIMEOUT"  # it ran past the time limit and was killed
    OUT_OF_MEMORY = "OUT_OF_MEMORY"  # it ran past the memory limit
    BAD_OUTPUT = "BAD_OUTPUT"  # type, number, shape, dtype, strides, device or memory of the result
    WRONG = "WRONG"  # values beyond what the yardsticks lose against the oracle
    STALE_OUTPUT = "STALE_OUTPUT"  # the result belongs to other inputs, or to none: nothing was computed for these
    NONDETERMINISTIC = "NONDETERMINISTIC"  # equal inputs, other bits
    BATCH_VARIANT = "BATCH_VARIANT"  # a row's result depends on the rows beside it
    MUTATED_INPUT = "MUTATED_INPUT"  # it wrote to an argument the schema does not declare as written
    OUT_OF_BOUNDS = "OUT_OF_BOUNDS"  # it wrote outside the memory of its arguments
    FALLBACK = "FALLBACK"  # the result was computed by the reference or by its very operators: no kernel here
    IMPLAUSIBLE = "IMPLAUSIBLE"  # faster than the device can move the bytes or do the arithmetic, or no time at all
    CHEAT_ASYNC = "CHEAT_ASYNC"  # work went on after the call's time was taken
    CHEAT_PATCH = "CHEAT_PATCH"  # functions of the harness, clock or framework were replaced
    CHEAT_TIMER = "CHEAT_TIMER"  # the times contradict a second process on the parent's clock
    CHEAT_WARMUP = "CHEAT_WARMUP"  # warm-up calls behave unlike timed ones
    CHEAT_BASELINE = "CHEAT_BASELINE"  # the baseline beside the candidate is slower than where the candidate never was
    CHEAT_CHANNEL = "CHEAT_CHANNEL"  # a message that the harness did not write
    CHEAT_FILES = "CHEAT_FILES"  # files of the product changed while the candidate ran
    CHEAT_CACHE = "CHEAT_CACHE"  # it set aside cache memory that the flush cannot reach


# Where the candidate is not at fault in a way that a run must fail for.
HARMLESS = frozenset({Status.OK, Status.NOISY, Status.DECLINED})


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A status with the sentence that explains it."""

    status: Status
    reason: str = ""

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return self.status is Status.OK


OK = Verdict(status=Status.OK)


class Rejected(Exception):
    """Ends the judging of a candidate (or of one of its workloads) with a verdict."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(f"{status.value}: {reason}")
        self.verdict = Verdict(status=status, reason=reason)
