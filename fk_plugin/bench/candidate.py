"""Examines one candidate: is it right, everywhere; is it honest; and how fast is it."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from fk_plugin.bench import compare, contents, schema
from fk_plugin.bench.compare import Errors
from fk_plugin.bench.contents import pack
from fk_plugin.bench.group import Group
from fk_plugin.bench.judge import Expected, Judge, expect
from fk_plugin.bench.measure import seed
from fk_plugin.bench.setting import Setting
from fk_plugin.bench.status import Rejected, Status
from fk_plugin.bench.tensors import read
from fk_plugin.task import Workload

_DRAWS_EDGE, _DRAWS = 400, 16


class Declined(Exception):
    """The candidate's guard refuses this workload's arguments."""


class Correctness:
    """Judges one candidate's process on one workload after another."""

    def __init__(self, setting: Setting, group: Group, oracle_ranks: Group | None, *, takes_out: bool) -> None:
        self.setting, self.group, self.oracle_ranks = setting, group, oracle_ranks
        self.takes_out = takes_out and schema.out_overload(setting.task) is not None
        self.judges = [Judge(setting.task, setting.device, setting.checks) for _ in group.ranks]
        self._expected: dict[str, list[Expected]] = {}

    @property
    def errors(self) -> Errors:
        """The worst errors on the current workload over all ranks."""
        return compare.worst(j.errors for j in self.judges)

    def expected(self, workload: Workload, recipe: dict[str, Any], *, compiled: bool = False) -> list[Expected]:
        """What each rank must produce; computed after the candidate ran."""
        setting = self.setting
        if self.oracle_ranks is None:
            return [expect(setting.task, workload, setting.device, recipe, compiled=compiled)]
        replies = self.oracle_ranks.ask("expect", workload=pack(workload), recipe=recipe, tag="e")
        ranks = zip(self.oracle_ranks.ranks, replies, strict=True)
        return [
            Expected(
                reference=[read(child.folder, e) for e in r["reference"]],
                oracle=[read(child.folder, e) for e in r["oracle"]],
                returned=r["returned"],
                form=r["form"],
                computed=frozenset(r["computed"]),
            )
            for child, r in ranks
        ]

    def workload(self, workload: Workload, yardsticks: list[Errors], *, timed: bool) -> None:
        """Every check on one workload.

        Raises:
            Rejected: the first thing found. Declined: the guard refuses these arguments.
        """
        for judge in self.judges:
            judge.begin(yardsticks)
        first, second = {"seed": seed()}, {"seed": seed()}
        on = self.setting.checks.on
        replies = self._ask(workload, first, poison=True)
        outputs = self._judge(workload, "the first call", first, replies)
        if timed and on("fallback"):
            self._fallback(replies, self.expected(workload, first))
        if on("repeat"):
            self._repeat(workload, first, outputs)
        if on("reuse"):
            self._judge(workload, "new values at the same addresses", second, self._ask(workload, second, reuse=True))
        if on("twin"):
            twin = {**second, "twin": seed()}
            self._judge(workload, "values that differ in a block only", twin, self._ask(workload, twin, reuse=True))
        if self.takes_out:
            reply = self._ask(workload, second, form="out", poison=True)
            self._judge(workload, "the call with out=", second, reply, form="out")
        if on("rows") and not self.setting.task.row_variance:
            self._rows(workload, first, outputs)
        if self.setting.task.compare == "distribution":
            self._draws(workload, first)

    def _ask(self, workload: Workload, recipe: dict[str, Any], **how: Any) -> list[dict[str, Any]]:
        replies = self.group.ask("call", workload=pack(workload), recipe=recipe, **how)
        for reply in replies:
            if "declined" in reply:
                raise Declined(str(reply["declined"]))
        return replies

    def _judge(
        self, workload: Workload, label: str, recipe: dict[str, Any], replies: list[dict[str, Any]], form: str = "main"
    ) -> list[list[torch.Tensor]]:
        outputs = []
        wanted = self.expected(workload, recipe)
        for rank, (judge, reply, want) in enumerate(zip(self.judges, replies, wanted, strict=True)):
            folder = self.group.ranks[rank].folder
            if "expected" in reply:  # only with the check oracle_elsewhere switched off
                leaked = judge.outputs(reply["expected"], folder)
                want = replace(want, reference=leaked, oracle=[t.double() for t in leaked])
            judge.structure(reply, want, form=form)
            got = judge.outputs(reply["outputs"], folder)
            if self.setting.checks.on("judge_elsewhere"):
                judge.values(label, got, want)
            elif reply["verdict"]:
                raise Rejected(Status.WRONG, str(reply["verdict"]))
            outputs.append(got)
        return outputs

    def _fallback(self, replies: list[dict[str, Any]], wanted: list[Expected]) -> None:
        for reply, want in zip(replies, wanted, strict=True):
            if want.computed and want.computed <= set(reply["computed"]):
                names = ", ".join(sorted(want.computed))
                reason = (
                    f"the result was computed by PyTorch's own {names}, as the reference's, which an engine has "
                    "without a kernel; compute it another way"
                )
                raise Rejected(Status.FALLBACK, reason)

    def _repeat(self, workload: Workload, recipe: dict[str, Any], first: list[list[torch.Tensor]]) -> None:
        for _ in range(self.setting.repeats):
            replies = self._ask(workload, recipe, reuse=True)
            for rank, reply in enumerate(replies):
                again = self.judges[rank].outputs(reply["outputs"], self.group.ranks[rank].folder)
                for a, b in zip(first[rank], again, strict=True):
                    if not compare.equal_bits(a, b):
                        count = int((a != b).sum())
                        raise Rejected(
                            Status.NONDETERMINISTIC, f"equal inputs gave {count} of {a.numel()} other elements"
                        )

    def _rows(self, workload: Workload, recipe: dict[str, Any], batch: list[list[torch.Tensor]]) -> None:
        task, device = self.setting.task, self.setting.device
        if self.setting.world > 1:
            return  # rows of a rank depend on other ranks' by the task's nature
        rows = task.tokens(*contents.build(task, workload, device, recipe))
        for start, stop in dict.fromkeys(((0, 1), (rows // 2, rows), (rows - 1, rows))):
            if rows < 2 or not any(contents.follows_rows(t, rows) for t in batch[0]):
                return
            part = {**recipe, "rows": [start, stop]}
            try:
                reply = self._ask(workload, part)[0]
            except Declined:
                continue  # a guard may refuse small batches
            outputs = self.judges[0].outputs(reply["outputs"], self.group.ranks[0].folder)
            for whole, alone in zip(batch[0], outputs, strict=True):
                if contents.follows_rows(whole, rows) and not compare.equal_bits(whole[start:stop], alone):
                    raise Rejected(
                        Status.BATCH_VARIANT, f"rows {start} to {stop - 1} of {rows} give other bits when alone"
                    )

    def _draws(self, workload: Workload, recipe: dict[str, Any]) -> None:
        count = _DRAWS_EDGE if workload.phase == "edge" else _DRAWS
        draws = []
        for k in range(count):
            reply = self._ask(workload, {**recipe, "draw": k}, reuse=True)[0]
            draws.append(self.judges[0].outputs(reply["outputs"], self.group.ranks[0].folder)[0].reshape(-1))
        want = self.expected(workload, recipe)[0]
        complaint = compare.improbable(torch.stack(draws).cpu(), want.oracle[0].double().cpu())
        if complaint:
            raise Rejected(Status.WRONG, f"over {count} draws, {complaint}")


def hidden(workloads: tuple[Workload, ...], count: int) -> list[Workload]:
    """Copies of random workloads with a row count that no file names, no larger than the original's."""
    generator = random.Random(secrets.randbits(64))
    found = []
    for workload in generator.sample(workloads, min(count, len(workloads))):
        axis = next((a for a in ("tokens", "rows") if a in workload.axes), None)
        if axis is None or "padded" in workload.axes:
            continue
        most = min(max(workload.axes[axis], 1), 512)
        size = generator.randint(min(2, most), most) | 1
        found.append(replace(workload, name=f"hidden-{size}", axes={**workload.axes, axis: size}, phase="edge"))
    return found


def describe_edge(workload: Workload, rejected: Rejected) -> Rejected:
    """The same rejection, naming the workload it was found on."""
    return Rejected(rejected.verdict.status, f"on {workload.name}: {rejected.verdict.reason}")


Progress = Callable[[str], None]
