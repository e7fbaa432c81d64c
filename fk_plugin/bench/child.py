"""The parent's end of the children: start them, ask them, limit them, and say in words how one died.

A child's messages are claims. What decides (values, and times on the parent's clock) is measured here.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fk_plugin.bench.status import Rejected, Status
from fk_plugin.errors import FkError

_SCRATCH = Path("/dev/shm")
_PREFIX = "fk-bench-"
_IMPORT_S, _ANSWER_S, _END_S = 300.0, 20.0, 10.0  # the zygote imports an engine, forks, ends
_ROOM = 4 << 30  # results of large calls lie there until they are read; a container's default is 64 MiB


def _half_of_memory() -> int:
    return min(24 << 30, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a candidate may use: seconds per request (its import is one), bytes of memory beyond the interpreter's.

    `load_s` are the seconds that task and baselines may take to load; engines are slow to import.
    """

    load_s: float = 300.0
    call_s: float = 60.0
    memory: int = field(default_factory=_half_of_memory)


class NurseryLost(FkError):
    """The zygote is gone, and with it every child."""


@dataclass(frozen=True, kw_only=True)
class Ticket:
    """A request on its way."""

    nonce: str
    start: float


class Nursery:
    """Owns the zygote. Use as a context manager; leaving it ends every child."""

    def __init__(self, environ: dict[str, str] | None = None) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_scratch()))
        self._claim = _claim(self._folder)
        _sweep(self._folder.parent)
        # Without NVML, asking whether a GPU is there initialises the driver, and no child could use CUDA after a fork.
        # Idle OpenMP threads of one process would otherwise spin on the cores that another is being timed on.
        quiet = {"OMP_WAIT_POLICY": "passive", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
        env = {**os.environ, **quiet, **(environ or {})}
        self._log = (self._folder / "log").open("wb")
        command = [sys.executable, "-m", "fk_plugin.bench.zygote", str(theirs.fileno())]
        self._process = subprocess.Popen(
            command, pass_fds=(theirs.fileno(),), env=env, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log
        )
        theirs.close()
        self._channel, self._lock = ours, threading.Lock()  # a second process is loaded while the first is judged
        self._children: list[Child] = []

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children:
            child.close()
        self._channel.close()
        try:
            self._process.wait(timeout=_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        os.close(self._claim)

    def request(self, message: dict[str, Any], fds: list[int] | None = None) -> dict[str, Any]:
        """One message to the zygote and its answer."""
        try:
            with self._lock:
                self._channel.settimeout(_IMPORT_S if message["op"] == "preload" else _ANSWER_S)
                socket.send_fds(self._channel, [json.dumps(message).encode()], fds or [])
                data = self._channel.recv(1 << 20)
        except (BrokenPipeError, ConnectionResetError):
            data = b""
        except TimeoutError:
            self._process.kill()  # also one that was stopped
            data = b""
        if not data:
            self._process.wait()
            self.check()
        reply: dict[str, Any] = json.loads(data)
        return reply

    def check(self) -> None:
        """NurseryLost if the zygote has ended."""
        status = self._process.poll()
        if status is not None:
            words = last_words(self._folder / "log")
            raise NurseryLost(f"the process that starts the sandbox's children ended with status {status}{words}")

    def store(self) -> str:
        """A file for the ranks of one group to meet at."""
        return str(Path(tempfile.mkdtemp(prefix="store-", dir=self._folder)) / "store")

    def start(self, limits: Limits, environ: dict[str, str] | None = None) -> Child:
        """A fresh child, forked from the clean zygote."""
        folder = Path(tempfile.mkdtemp(prefix="child-", dir=self._folder))
        child = Child(self, folder, limits, environ or {})
        self._children.append(child)
        return child


@dataclass
class Child:
    """One child process. `ask` is the only way to talk to it."""

    nursery: Nursery
    folder: Path
    limits: Limits
    environ: dict[str, str]
    pid: int = 0
    check_nonce: bool = True
    _buffer: bytes = b""
    closed: bool = False
    _asked: str = ""

    def __post_init__(self) -> None:
        requests, self._to = os.pipe()
        self._from, replies = os.pipe()
        log = os.open(self.folder / "log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        message = {"op": "fork", "folder": str(self.folder), "environ": self.environ, "memory": self.limits.memory}
        self.pid = int(self.nursery.request(message, [requests, replies, log])["pid"])
        for fd in (requests, replies, log):
            os.close(fd)
        self._base_memory = _resident(self.pid)

    def ask(self, op: str, *, timeout: float | None = None, **arguments: Any) -> dict[str, Any]:
        """Send a request and wait for its answer; see `receive`."""
        return self.receive(self.send(op, secrets.token_hex(8), json.dumps(arguments)), timeout or self.limits.call_s)

    def send(self, op: str, nonce: str, arguments: str) -> Ticket:
        """Send a request (arguments as JSON); the ticket is for `receive`."""
        payload = json.dumps({**json.loads(arguments), "op": op, "nonce": nonce}).encode() + b"\n"
        self._asked = op
        start = time.perf_counter()
        if not self.closed:
            with contextlib.suppress(BrokenPipeError):  # `receive` finds the channel closed and says why
                self._write_all(payload)
        return Ticket(nonce=nonce, start=start)

    def receive(self, ticket: Ticket, timeout: float) -> dict[str, Any]:
        """The answer; its `seconds` is the parent's clock from sending to reading.

        Raises:
            Rejected: the child reported a failure, died, ran past a limit, or answered what was not asked.
        """
        if self.closed:
            raise Rejected(Status.CRASHED, "its process has ended")
        line = self._line(timeout)
        seconds = time.perf_counter() - ticket.start
        try:
            reply = json.loads(line)
            valid = isinstance(reply, dict) and (reply.pop("nonce", None) == ticket.nonce or not self.check_nonce)
        except ValueError:
            valid = False
        if not valid:
            self.close()
            raise Rejected(Status.CHEAT_CHANNEL, f"its process sent a message that answers no request: {line[:80]!r}")
        if "failed" in reply:
            raise self._failure(reply)
        return {**reply, "seconds": seconds}

    def _failure(self, reply: dict[str, Any]) -> Rejected:
        """What the child says of itself, which may not be that all is well: only the judge says so."""
        failures = {s.value: s for s in Status if s not in (Status.OK, Status.NOISY)}
        status, reason = failures.get(str(reply["failed"])), printable(str(reply.get("reason", "")))
        if status is None:
            self.close()
            return Rejected(Status.CHEAT_CHANNEL, f"its process reported the status {printable(str(reply['failed']))}")
        return Rejected(status, reason)

    def _write_all(self, payload: bytes) -> None:
        view = memoryview(payload)
        while view:
            view = view[os.write(self._to, view) :]

    def _line(self, timeout: float) -> bytes:
        deadline = time.monotonic() + timeout
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0:
                self.close()
                raise Rejected(
                    Status.TIMEOUT, f"no answer within {timeout:.0f} s (see --timeout); its process was killed"
                )
            if select.select([self._from], [], [], min(left, 0.05))[0]:
                data = os.read(self._from, 1 << 20)
                if not data:
                    raise self._death()
                self._buffer += data
            used = _resident(self.pid) - self._base_memory
            if used > self.limits.memory:
                self.close()
                limit = self.limits.memory / 2**30
                used_gib = used / 2**30
                raise Rejected(Status.OUT_OF_MEMORY, f"it used {used_gib:.1f} GiB of memory, limit {limit:.1f}; killed")
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _death(self) -> Rejected:
        status, words = self._wait(5.0), last_words(self.folder / "log")
        self.close()
        if status is None:
            return Rejected(Status.CRASHED, "its process closed the channel and went on; it was killed")
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            name = signal.Signals(number).name if number in {s.value for s in signal.Signals} else str(number)
            return Rejected(Status.CRASHED, f"its process was ended by {name}{words}")
        code = os.waitstatus_to_exitcode(status)
        when = "while it was being loaded" if self._asked in ("load", "candidate") else "in the middle of a call"
        return Rejected(Status.CRASHED, f"its process left with exit status {code} {when}")

    def _wait(self, seconds: float) -> int | None:
        deadline = time.monotonic() + seconds
        while True:
            status = self.nursery.request({"op": "reap", "pid": self.pid})["status"]
            if status is not None or time.monotonic() > deadline:
                if status is not None:
                    self._reaped = True
                return status if status is None else int(status)
            time.sleep(0.01)

    _reaped: bool = False

    def close(self) -> None:
        """Kill the child with everything it started in its session, and forget it."""
        if self.closed:
            return
        self.closed = True
        for pid in descendants(self.pid):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError, PermissionError):  # the group may be gone already
            os.killpg(self.pid, signal.SIGKILL)
        if not self._reaped:
            with contextlib.suppress(NurseryLost):  # it took its children along
                self._wait(5.0)
        os.close(self._to)
        os.close(self._from)
        shutil.rmtree(self.folder, ignore_errors=True)


def descendants(pid: int) -> list[int]:
    """Children of a process, their children, and so on: also those that left its session."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it ended meanwhile
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                parents.setdefault(parent, []).append(int(entry.name))
    found, waiting = [], [pid]
    while waiting:
        new = parents.get(waiting.pop(), [])
        found += new
        waiting += new
    return found


def _claim(folder: Path) -> int:
    """Hold a lock on the folder's `owner` file; the system drops it however this process ends."""
    owner = os.open(folder / "owner", os.O_CREAT | os.O_RDWR)
    fcntl.flock(owner, fcntl.LOCK_EX)
    return owner


def _sweep(parent: Path) -> None:
    """Remove the folders of runs that were killed: those whose lock nobody holds."""
    for folder in parent.glob(f"{_PREFIX}*"):
        try:
            owner = os.open(folder / "owner", os.O_RDWR)
        except OSError:  # being made, being removed, or another user's
            continue
        try:
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:
            continue  # in use
        finally:
            os.close(owner)


def _scratch() -> Path | None:
    """Memory-backed storage where there is enough of it, else the usual temporary folder."""
    if _SCRATCH.is_dir() and os.access(_SCRATCH, os.W_OK) and shutil.disk_usage(_SCRATCH).free >= _ROOM:
        return _SCRATCH
    return None


def last_words(log: Path) -> str:
    """The last line a process printed, to append to a sentence."""
    try:
        lines = [x.strip() for x in log.read_text(errors="replace").splitlines() if x.strip()]
    except OSError:  # a candidate may delete it
        return "; its output is gone"
    return f"; its last output: {printable(lines[-1][:200])}" if lines else ""


def printable(text: str) -> str:
    """The text without control characters, with which a candidate could rewrite the table above it."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _resident(pid: int) -> int:
    """Resident bytes of a process; 0 when it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0
