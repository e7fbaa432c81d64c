"""The parent's side of one engine start: launch, wait with progress, ask, stop, and say why it died."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fk_plugin.counters import read_events, read_folder
from fk_plugin.e2e.protocol import Completion, Options
from fk_plugin.errors import FkError

Progress = Callable[[str], None]


class EngineFailed(FkError):
    """An engine process died, hung or raised; the message quotes its reason and names its log."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Completions of one batch and the wall time in seconds from the call to the last token."""

    seconds: float
    completions: list[Completion]


class Engine:
    """One engine start in a child process. Use as a context manager."""

    def __init__(
        self,
        engine: str,
        options: Options,
        environment: Mapping[str, str],
        folder: Path,
        *,
        label: str,
        progress: Progress,
        start_limit: float,
        answer_limit: float,
    ) -> None:
        self.proof = folder / "proof"
        self.log = folder / "engine.log"
        self.label, self._progress, self._answer_limit = label, progress, answer_limit
        folder.mkdir(parents=True, exist_ok=True)
        self._began = time.monotonic()
        # A socket's path may hold about 100 bytes, fewer than many a run folder's.
        self._socket_folder = tempfile.TemporaryDirectory(prefix="fk-")
        path = str(Path(self._socket_folder.name, "s"))
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen(1)
        env = {**os.environ, **environment, "FK_PROOF_DIR": str(self.proof)}
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "fk_plugin.e2e.worker", engine, path],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=env,
                cwd=folder,
                start_new_session=True,
            )
        try:
            self._link = self._accept(listener, start_limit)
            self._buffer = b""
            self._send(options.to_json())
            self.described: dict[str, Any] = self._receive(start_limit, "starting")["ready"]
        except BaseException:
            self.close()
            raise
        finally:
            listener.close()
        self.start_seconds = time.monotonic() - self._began

    def _accept(self, listener: socket.socket, limit: float) -> socket.socket:
        listener.settimeout(1.0)
        while True:
            try:
                return listener.accept()[0]
            except TimeoutError:
                self._alive(limit, "starting")

    def _alive(self, limit: float, doing: str) -> None:
        seconds = time.monotonic() - self._began
        self._progress(f"{self.label}: {doing}, {seconds:.0f} s")
        if self._process.poll() is not None:
            raise EngineFailed(self._reason(f"ended with status {self._process.returncode}"))
        if seconds > limit:
            raise EngineFailed(self._reason(f"was still {doing} after {limit:.0f} s"))

    def _send(self, message: Mapping[str, Any]) -> None:
        self._link.sendall(json.dumps(message).encode() + b"\n")

    def _receive(self, limit: float, doing: str) -> dict[str, Any]:
        self._link.settimeout(1.0)
        while b"\n" not in self._buffer:
            try:
                chunk = self._link.recv(1 << 20)
            except TimeoutError:
                self._alive(limit, doing)
                continue
            if not chunk:
                self._process.wait(timeout=30)
                raise EngineFailed(self._reason(f"ended with status {self._process.returncode}"))
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        if "error" in message:
            raise EngineFailed(self._reason(f"failed: {message['error']}"))
        return message

    def generate(
        self, prompts: list[list[int]], *, max_tokens: int, logprobs: int = 0, prompt_logprobs: bool = False
    ) -> Answer:
        """Run one batch; see Launcher.generate."""
        self._began = time.monotonic()
        request = {
            "prompts": prompts,
            "max_tokens": max_tokens,
            "logprobs": logprobs,
            "prompt_logprobs": prompt_logprobs,
        }
        self._send(request)
        message = self._receive(self._answer_limit, f"{len(prompts)} requests")
        return Answer(seconds=message["seconds"], completions=[Completion.from_json(c) for c in message["completions"]])

    def counts(self) -> dict[int, dict[str, int]]:
        """The counters of every process of this start, by pid."""
        return read_folder(self.proof)

    def flush_device_counters(self) -> None:
        """Have every process that holds a model write its device counters out."""
        requests = [self.proof / f"{e['pid']}.flush" for e in self.events() if e["event"] == "model"]
        for request in requests:
            request.touch()
        until = time.monotonic() + 15
        while any(r.exists() for r in requests):
            if time.monotonic() > until:
                raise EngineFailed(self._reason("did not write its device counters within 15 s"))
            time.sleep(0.05)

    def events(self) -> list[dict[str, Any]]:
        """The events of every process of this start."""
        return list(read_events(self.proof))

    def _reason(self, what: str) -> str:
        said = [e["message"] for e in self.events() if e["event"] in ("refused", "kernel_error")]
        text = self.log.read_text(errors="replace").splitlines()
        # The last line that names an error says more than the last line of a traceback of a bystander process.
        named = [line.strip() for line in text if "Error" in line and "Traceback" not in line]
        quote = said[-1] if said else (named[-1][-400:] if named else (text[-1] if text else "it wrote nothing"))
        return f"{self.label} {what}. It said: {quote}\nIts log: {self.log}"

    def close(self) -> None:
        """Hang up, give the engine 20 seconds to stop, then kill its whole process group."""
        if hasattr(self, "_link"):
            self._link.close()
        try:
            self._process.wait(timeout=20 if hasattr(self, "described") else 1)
        except subprocess.TimeoutExpired:
            pass
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()
        self._socket_folder.cleanup()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
