"""Counters survive SIGKILL and are readable from outside; events are whole lines."""

import mmap
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fk_plugin import proof
from fk_plugin.counters import Counters, Events, read_events, read_file, read_folder

_CHILD = """
import sys, time
from pathlib import Path
from typing import Any
from fk_plugin import proof
proof.open_folder(Path(sys.argv[1]))
proof.event("ready")
while True:
    proof.count("call|t|k|8")
    time.sleep(0.001)
"""


def test_counts_survive_sigkill_and_are_read_while_the_process_runs(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", _CHILD, str(tmp_path)])
    try:
        until = time.monotonic() + 20
        while not any(counts.get("call|t|k|8", 0) > 5 for counts in read_folder(tmp_path).values()):
            assert time.monotonic() < until, "the child never counted"
            time.sleep(0.01)
        alive = read_folder(tmp_path)[child.pid]["call|t|k|8"]
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    assert read_folder(tmp_path)[child.pid]["call|t|k|8"] >= alive > 5
    assert [e["event"] for e in read_events(tmp_path)] == ["ready"]


def test_a_reader_never_meets_a_file_without_its_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[int, dict[str, int]]] = []
    real = mmap.mmap

    def read_meanwhile(*args: Any, **kwargs: Any) -> mmap.mmap:
        seen.append(read_folder(tmp_path))
        return real(*args, **kwargs)

    monkeypatch.setattr("fk_plugin.counters.mmap.mmap", read_meanwhile)
    Counters(tmp_path).add("key")
    assert seen == [{}]
    assert list(read_folder(tmp_path).values()) == [{"key": 1}]


def test_a_forked_child_counts_into_its_own_file(tmp_path: Path) -> None:
    code = (
        "import os,sys;from pathlib import Path;from fk_plugin import proof\n"
        "proof.open_folder(Path(sys.argv[1])); proof.count('parent')\n"
        "pid=os.fork()\n"
        "if pid==0: proof.count('child',3); proof.event('forked'); os._exit(0)\n"
        "os.waitpid(pid,0); print(os.getpid(),pid)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    parent, child = map(int, done.stdout.split())
    assert read_folder(tmp_path) == {parent: {"parent": 1}, child: {"child": 3}}
    assert [e["pid"] for e in read_events(tmp_path)] == [child]


def test_long_keys_are_cut_and_too_many_are_an_error(tmp_path: Path) -> None:
    counters = Counters(tmp_path)
    counters.add("x" * 500)
    assert list(read_file(tmp_path / f"{os.getpid()}.counters")) == ["x" * 183]
    with pytest.raises(RuntimeError, match="more than 4096"):
        for number in range(4097):
            counters.add(str(number))


def test_a_foreign_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "1.counters").write_bytes(b"something else entirely")
    with pytest.raises(ValueError, match="no counter file"):
        read_folder(tmp_path)


def test_an_event_line_cut_by_a_kill_ends_its_file(tmp_path: Path) -> None:
    events = Events(tmp_path)
    events.write("one", n=1)
    with (tmp_path / f"{os.getpid()}.events.jsonl").open("ab") as file:
        file.write(b'{"event": "tw')
    assert [e["event"] for e in read_events(tmp_path)] == ["one"]


@pytest.mark.parametrize(("tokens", "bucket"), [(0, 0), (1, 1), (2, 2), (3, 4), (1024, 1024), (1025, 2048)])
def test_bucket_rounds_up_to_a_power_of_two(tokens: int, bucket: int) -> None:
    assert proof.bucket(tokens) == bucket


def test_usage_groups_calls_and_fallbacks() -> None:
    counts = {"call|t|k|8": 3, "call|t|k|16": 1, "fall|t|ref|dtype float64|8": 2, "forward|M": 7, "engine|t|a.b": 7}
    usage = proof.usage(counts)["t"]
    assert usage.calls == {"k": 4}
    assert usage.fallbacks == {("ref", "dtype float64"): 2}
    assert usage.buckets == {8: 5, 16: 1}
    assert usage.seen == 6
    assert proof.forwards(counts) == 7
    assert proof.engine_calls(counts) == {"t": {"a.b": 7}}
    assert proof.on_device({"device|forward|M": 9, "forward|M": 1}) == {"forward|M": 9}
