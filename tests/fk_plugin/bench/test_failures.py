"""A candidate that fails costs one line with the reason, and nothing else."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fk_plugin.bench.child import Limits
from fk_plugin.bench.rows import Row
from fk_plugin.bench.session import Session
from fk_plugin.bench.status import Status

# Another operator than the reference's, which would be a fallback.
GOOD = "def scale(x, weight):\n    return torch.addcmul(x.new_zeros(()), x, weight).contiguous()\n"
FAILURES = {
    "syntax_error": ("def scale(x, weight:\n", Status.LOAD_ERROR, "SyntaxError"),
    "missing_symbol": ("def other(x, weight):\n    return x\n", Status.LOAD_ERROR, "has no 'scale'"),
    "missing_import": ("import no_such_module\n", Status.LOAD_ERROR, "no_such_module"),
    "raises_at_import": ("raise ValueError('not today')\n", Status.LOAD_ERROR, "not today"),
    "wrong_signature": ("def scale(x):\n    return x\n", Status.LOAD_ERROR, "expected (x, weight)"),
    "not_a_function": ("scale = 3\n", Status.LOAD_ERROR, "int"),
    "exit_at_import": ("import os; os._exit(0)\n", Status.CRASHED, "exit status 0 while it was being"),
    "exit_zero": ("import os\ndef scale(x, weight):\n    os._exit(0)\n", Status.CRASHED, "exit status 0"),
    "system_exit": ("def scale(x, weight):\n    raise SystemExit(0)\n", Status.CRASHED, "SystemExit"),
    "raises": ("def scale(x, weight):\n    raise KeyError('k')\n", Status.CRASHED, "KeyError"),
    "illegal_access": (
        "import ctypes\ndef scale(x, weight):\n    ctypes.string_at(8)\n", Status.CRASHED, "SIGSEGV"),
    "kills_the_sandbox": ("import os, signal\ndef scale(x, weight):\n    os.kill(os.getppid(), signal.SIGKILL)\n",
                          Status.CRASHED, "while it ran, the process that starts the sandbox's children ended"),
    "killed": ("import os, signal\ndef scale(x, weight):\n    os.kill(os.getpid(), signal.SIGKILL)\n",
               Status.CRASHED, "SIGKILL"),
    "stops_the_sandbox": ("import os, signal\ndef scale(x, weight):\n    os.kill(os.getppid(), signal.SIGSTOP)\n"
                          "    os._exit(1)\n", Status.CRASHED, "while it ran, the process that starts"),
    "reports_that_all_is_well": (
        "from fk_plugin.bench.status import Rejected, Status\n"
        "def scale(x, weight):\n    raise Rejected(Status.OK, '')\n",
        Status.CHEAT_CHANNEL, "reported the status OK"),
    "reports_nonsense": (
        "from fk_plugin.bench.status import Rejected\nclass Odd(Rejected):\n    def __init__(self):\n"
        "        self.verdict = type('V', (), {'status': type('S', (), {'value': 'ODD'}), 'reason': 'r'})\n"
        "def scale(x, weight):\n    raise Odd()\n", Status.CHEAT_CHANNEL, "reported the status ODD"),
    "deletes_its_log": (
        "import os\ndef scale(x, weight):\n    os.unlink(os.readlink('/proc/self/fd/1'))\n"
        "    os.kill(os.getpid(), 9)\n", Status.CRASHED, "its output is gone"),
    "rewrites_the_screen": (
        "def scale(x, weight):\n    raise ValueError('\\x1b[2Jgood')\n", Status.CRASHED, "?[2Jgood"),
    "infinite_loop": ("def scale(x, weight):\n    while True:\n        pass\n", Status.TIMEOUT, "no answer within 3 s"),
    "hang_at_import": ("import time\ntime.sleep(1e6)\n", Status.TIMEOUT, "no answer"),
    "allocates_100_GB": (
        "def scale(x, weight):\n    return torch.ones(100 << 30, dtype=torch.uint8)\n",
        Status.OUT_OF_MEMORY, "memory"),
    "allocates_by_pieces": (
        "KEEP = []\ndef scale(x, weight):\n    while True:\n        KEEP.append(bytearray(1 << 26))\n",
        Status.OUT_OF_MEMORY, "memory"),
    "returns_none": ("def scale(x, weight):\n    x * weight\n", Status.BAD_OUTPUT, "returned nothing"),
    "returns_tuple": ("def scale(x, weight):\n    return (x * weight,)\n", Status.BAD_OUTPUT, "tuple"),
    "returns_number": ("def scale(x, weight):\n    return 1.0\n", Status.BAD_OUTPUT, "float"),
    "wrong_shape": ("def scale(x, weight):\n    return (x * weight)[:-1].clone()\n", Status.BAD_OUTPUT, "shape"),
    "wrong_dtype": ("def scale(x, weight):\n    return (x * weight).double()\n", Status.BAD_OUTPUT, "dtype float64"),
    "wrong_strides": (
        "def scale(x, weight):\n    return (x * weight).T.contiguous().T\n", Status.BAD_OUTPUT, "strides"),
    "wrong_device": ("def scale(x, weight):\n    return (x * weight).to('meta')\n", Status.BAD_OUTPUT, "device meta"),
    "subclass": (
        "class Mine(torch.Tensor):\n    pass\ndef scale(x, weight):\n    return (x * weight).as_subclass(Mine)\n",
        Status.BAD_OUTPUT, "Mine"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAILURES)
def test_failure_is_one_line_with_its_reason(name: str, examine: Callable[..., list[Row]]) -> None:
    code, status, words = FAILURES[name]
    limits = Limits(load_s=30, call_s=3, memory=1 << 30)
    (row,) = examine(code, limits=limits)
    assert row.verdict.status is status, row.verdict
    assert words in row.verdict.reason and "\n" not in row.verdict.reason
    assert row.failed and row.ratio is None


def test_next_candidate_runs_after_a_crash(examine: Callable[..., list[Row]]) -> None:
    assert examine(FAILURES["illegal_access"][0])[0].verdict.status is Status.CRASHED
    assert examine(GOOD)[0].verdict.status in (Status.OK, Status.NOISY)


def test_crash_on_one_workload_costs_only_that_one(
    sessions: Callable[[str], Session], examine: Callable[..., list[Row]]
) -> None:
    code = GOOD.replace("    return", "    import os\n    os._exit(3) if x.shape[0] == 64 else None\n    return")
    rows = examine(code, workloads=sessions("BOTH").setting.workloads, task="BOTH", hidden=0)
    assert rows[0].verdict.status is Status.CRASHED
    assert rows[1].verdict.status in (Status.OK, Status.NOISY), rows[1].verdict


def test_children_of_a_candidate_die_with_it(examine: Callable[..., list[Row]]) -> None:
    code = "import subprocess\nCHILD = subprocess.Popen(['sleep', '1234'])\n" + GOOD
    (row,) = examine(code)
    assert row.verdict.status is Status.CHEAT_ASYNC, row.verdict
    time.sleep(0.1)
    left = [p for p in Path("/proc").iterdir() if p.name.isdigit() and _command(p) == "sleep 1234"]
    assert not left, "a candidate's own children must be killed with it"


def test_detached_grandchildren_are_seen_and_die(examine: Callable[..., list[Row]]) -> None:
    code = "import subprocess\nsubprocess.run('setsid sleep 1235 >/dev/null 2>&1 &', shell=True)\n" + GOOD
    (row,) = examine(code)
    assert row.verdict.status is Status.CHEAT_ASYNC, row.verdict
    time.sleep(0.1)
    left = [p for p in Path("/proc").iterdir() if p.name.isdigit() and _command(p) == "sleep 1235"]
    assert not left, "what it detached must be killed with it"


def test_reason_names_the_line(examine: Callable[..., list[Row]]) -> None:
    (row,) = examine("def scale(x, weight):\n    return 1 / 0\n")
    assert "ZeroDivisionError: division by zero (kernel" in row.verdict.reason and ".py:3)" in row.verdict.reason


def test_next_candidate_runs_after_one_that_killed_the_sandbox(examine: Callable[..., list[Row]]) -> None:
    assert examine(FAILURES["kills_the_sandbox"][0])[0].verdict.status is Status.CRASHED
    assert examine(GOOD)[0].verdict.status in (Status.OK, Status.NOISY)


def _command(process: Path) -> str:
    try:
        return (process / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return ""


def test_candidate_may_be_any_callable_and_its_file_is_its_source(examine: Callable[..., list[Row]]) -> None:
    code = (
        "from functools import partial\ndef two(x, weight, more):\n    return torch.addcmul(x.new_zeros(()), x, weight)"
    )
    (row,) = examine(code + ".contiguous()\nscale = partial(two, more=1)\n")
    assert row.verdict.status in (Status.OK, Status.NOISY) and len(row.source) == 12, row.verdict


def test_only_decorated_kernel_of_a_file_needs_no_name(examine: Callable[..., list[Row]]) -> None:
    code = "from fk_plugin.kernel import Requires, kernel\n@kernel('scale', requires=Requires(device='any', dtypes="
    code += "('float32', 'bfloat16')))\ndef mine(x, weight):\n    return torch.addcmul(x.new_zeros(()), x, weight)"
    (row,) = examine(code + ".contiguous()\n")
    assert row.verdict.status in (Status.OK, Status.NOISY) and row.kernel.endswith(":mine"), row.verdict
