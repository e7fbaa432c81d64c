"""Nothing outlives a run that was killed."""

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

_SPINS = """
from pathlib import Path

def silu_and_mul(x, round_activation=True):
    Path({flag!r}).touch()
    while True:
        pass
"""


def _marked(mark: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:  # it ended while we looked
                continue
    return found


def _wait(condition: object, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if condition():  # type: ignore[operator]
            return True
        time.sleep(0.1)
    return False


def test_a_spinning_candidate_dies_with_a_killed_bench(tmp_path: Path) -> None:
    flag = tmp_path / "called"
    (tmp_path / "spins.py").write_text(_SPINS.format(flag=str(flag)))
    mark = f"FK_TEST_MARK={uuid.uuid4()}"
    command = [sys.executable, "-m", "fk_plugin.cli.main", "bench", "silu_and_mul", "--kernel", "spins.py",
               "--device", "cpu", "--baselines", "reference", "--workloads", "smollm2-135m-decode-1"]  # fmt: skip
    env = {**os.environ, **dict([mark.split("=")])}
    bench = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        assert _wait(flag.exists, 60), "the candidate was never called"
        assert len(_marked(mark)) >= 3  # the bench, its zygote, the candidate
    finally:
        bench.send_signal(signal.SIGKILL)
        bench.wait()
    assert _wait(lambda: not _marked(mark), 10), f"still there: {_marked(mark)}"
