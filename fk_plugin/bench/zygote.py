"""A clean process that has torch and the tasks imported and forks the children, so that each starts in milliseconds.

It never runs a candidate and never touches CUDA (a context does not survive a fork). Started by child.Nursery as
`python -m fk_plugin.bench.zygote FD`; FD is one end of a SOCK_SEQPACKET pair, one JSON message per packet.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    """Serve until the parent closes its end."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    from fk_plugin.bench import worker

    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    while True:
        data, fds, _, _ = socket.recv_fds(channel, 1 << 20, 4)
        if not data:
            return
        message = json.loads(data)
        reply: dict[str, Any]
        if message["op"] == "fork":
            reply = _fork(message, fds, channel, worker)
        elif message["op"] == "preload":
            reply = {"reasons": worker.preload(message["task"], message["names"], message["device"])}
        else:
            reply = {"status": _reap(int(message["pid"]))}
        channel.send(json.dumps(reply).encode())


def _fork(message: dict[str, Any], fds: list[int], channel: socket.socket, worker: Any) -> dict[str, Any]:
    pid = os.fork()
    if pid:
        for fd in fds:
            os.close(fd)
        return {"pid": pid}
    channel.close()
    _die_with_parent()
    _keep_orphans()
    requests, replies, log = fds
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.environ.update(message["environ"])
    code = 1
    try:
        code = worker.serve(requests, replies, message)
    finally:
        os._exit(code)  # the zygote's own exit handlers are not the child's


def _die_with_parent() -> None:
    """Have Linux kill this process when its parent ends: a candidate that spins would outlive a killed run."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)


def _keep_orphans() -> None:
    """Descendants whose parent ends stay below this process, and it dies first where memory is short."""
    if sys.platform == "linux":
        pr_set_child_subreaper = 36
        ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1, 0, 0, 0)
        Path("/proc/self/oom_score_adj").write_text("1000")


def _reap(pid: int) -> int | None:
    done, status = os.waitpid(pid, os.WNOHANG)
    return status if done else None


if __name__ == "__main__":
    main()
