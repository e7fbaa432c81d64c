"""The checks by name. Tests switch one off to prove that it, and nothing else, catches a given cheat."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

CHECKS = {
    "structure": "type, number, shape, dtype, strides and device of the result, and whose memory it is",
    "numeric": "values against the float64 oracle, per row and per element",
    "nan_placement": "NaN and infinities where the reference has them",
    "rounding": "16-bit results rounded in the reference's order",
    "oracle_elsewhere": "the expected result is never in the candidate's process",
    "judge_elsewhere": "the verdict is computed outside the candidate's process",
    "poison": "fresh memory holds NaN, so what is not written shows",
    "guard_zones": "memory around arguments and outputs unchanged",
    "mutation": "arguments not declared as written unchanged",
    "reuse": "new values at the same addresses, in the same tensor objects",
    "twin": "values that differ from the last call's only in a block in the middle",
    "fresh_timed": "new values in every timed call",
    "timed_outputs": "results of timed calls judged after the clock stopped",
    "second_outputs": "results of calls on the parent's clock judged as well",
    "repeat": "equal inputs give equal bits",
    "rows": "rows alone equal rows in the batch, bit for bit",
    "edge": "edge workloads",
    "hidden_shapes": "row counts that no file names",
    "fallback": "not the reference, and not its very operators",
    "floor": "no faster than bytes over bandwidth or operations over peak",
    "late": "results unchanged some time after the clock stopped",
    "threads": "no busy thread and no child process left behind by a call",
    "patched": "functions of clock, framework and harness unchanged",
    "modes": "process-wide settings, hooks and modes as they were",
    "parent_clock": "the speedup agrees with one between two other processes on the parent's clock",
    "warmup": "warm-up calls cost what timed calls cost",
    "clean_baseline": "the baseline is as fast beside the candidate as without it",
    "nonce": "every message answers the request it claims to answer",
    "files": "the product's files unchanged",
    "replay": "a replayed graph computes from new inputs",
    "l2_persistence": "cache memory set aside as before",
    "linter": "the task's outputs depend on every input",
}


@dataclass(frozen=True)
class Checks:
    """Which checks are on; all of them, unless a test disabled some."""

    disabled: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        unknown = self.disabled - CHECKS.keys()
        if unknown:
            raise ValueError(f"there is no check called {', '.join(sorted(unknown))}; see fk_plugin.bench.checks")

    def on(self, name: str) -> bool:
        """Whether the check is on. KeyError for a name that is none, so a misspelt check cannot be silently off."""
        CHECKS[name]
        return name not in self.disabled


def without(names: Iterable[str]) -> Checks:
    """Every check but these. For tests only: no command line reaches it."""
    return Checks(frozenset(names))
