"""Which kernels FK_KERNELS names, asked in a child process: `python -m fk_plugin.e2e.resolve`.

A candidate's file is a stranger's code. The process that judges it must never import it, or it could rewrite the
checks that judge it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from fk_plugin.errors import UsageError

_TIMEOUT = 120.0  # seconds; importing torch takes some on a busy machine


def resolve(kernels: str) -> dict[str, str]:
    """Kernel name by task for a choice in FK_KERNELS' form.

    Raises:
        UsageError: a name is wrong, a file cannot be loaded, or a kernel cannot run on this machine.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-m", "fk_plugin.e2e.resolve"],
            env={**os.environ, "FK_PLUGIN": "auto", "FK_KERNELS": kernels, "FK_TRACE": "0", "FK_DEVICE_COUNTERS": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UsageError(f"loading the kernels {kernels!r} took over {_TIMEOUT:.0f} s; does a file hang?") from None
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESOLVED ")]
    if not lines:
        last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise UsageError(f"loading the kernels {kernels!r} ended with status {done.returncode}: {last}")
    answer = json.loads(lines[-1].removeprefix("RESOLVED "))
    if "refused" in answer:
        raise UsageError(answer["refused"])
    found: dict[str, str] = answer["kernels"]
    return found


def main() -> None:
    """Print one line with the answer."""
    from fk_plugin import env, select
    from fk_plugin.dispatch import unavailable

    try:
        kernels = select.plan(env.read()).kernels
        for task, kernel in kernels.items():
            reason = unavailable(kernel)
            if reason:
                raise UsageError(
                    f"kernel {task}={kernel.name} cannot run here: {reason}; `fk list kernels` shows others."
                )
        answer: dict[str, object] = {"kernels": {task: kernel.name for task, kernel in kernels.items()}}
    except UsageError as error:
        answer = {"refused": str(error)}
    print("RESOLVED " + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
