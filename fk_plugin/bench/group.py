"""The ranks of one candidate (one child each; a single one for most tasks), asked together."""

from __future__ import annotations

import json
import secrets
from typing import Any

from fk_plugin.bench.child import Child, Limits, Nursery
from fk_plugin.bench.status import Rejected, Status


class Group:
    """As many children as ranks. `ask` sends one request to all and returns all answers."""

    def __init__(
        self,
        nursery: Nursery,
        limits: Limits,
        *,
        world: int = 1,
        environ: dict[str, str] | None = None,
        check_nonce: bool = True,
    ) -> None:
        self.limits = limits
        self.ranks: list[Child] = [nursery.start(limits, environ) for _ in range(world)]
        self._store = nursery.store() if world > 1 else ""
        for child in self.ranks:
            child.check_nonce = check_nonce

    def load(self, *, timeout: float, **arguments: Any) -> None:
        """Load task and baselines in every rank."""
        payloads = [arguments] * len(self.ranks)
        if len(self.ranks) > 1:
            device = arguments["device"]
            payloads = [
                {**arguments, "ranks": {"rank": n, "world": len(self.ranks), "store": self._store, "device": device}}
                for n in range(len(self.ranks))
            ]
        self._each("load", payloads, timeout)

    def ask(self, op: str, *, timeout: float | None = None, **arguments: Any) -> list[dict[str, Any]]:
        """The answers of all ranks.

        Raises:
            Rejected: a rank failed; the one that failed by itself is named, not those that waited for it.
        """
        return self._each(op, [arguments] * len(self.ranks), timeout or self.limits.call_s)

    def _each(self, op: str, payloads: list[dict[str, Any]], timeout: float) -> list[dict[str, Any]]:
        pairs = zip(self.ranks, payloads, strict=True)
        sent = [child.send(op, secrets.token_hex(8), json.dumps(payload)) for child, payload in pairs]
        answers: list[dict[str, Any]] = []
        failures: list[tuple[int, Rejected]] = []
        for number, (child, ticket) in enumerate(zip(self.ranks, sent, strict=True)):
            try:
                answers.append(child.receive(ticket, 5.0 if failures else timeout))
            except Rejected as rejected:
                failures.append((number, rejected))
        if not failures:
            return answers
        # A rank that died explains the others, which find their peer gone; one that raised explains those that wait.
        waits = Status.TIMEOUT
        number, blamed = min(failures, key=lambda f: (f[1].verdict.status is waits, not self._died(*f), f[0]))
        if len(self.ranks) == 1:
            raise blamed
        raise Rejected(blamed.verdict.status, f"rank {number}: {blamed.verdict.reason}")

    def _died(self, number: int, rejected: Rejected) -> bool:
        return self.ranks[number].closed and rejected.verdict.status is Status.CRASHED

    @property
    def alive(self) -> bool:
        """Whether every rank still runs."""
        return all(not child.closed for child in self.ranks)

    def close(self) -> None:
        """End every rank."""
        for child in self.ranks:
            child.close()
