"""The Triton kernels in Triton's interpreter, in a process of its own.

The interpreter is chosen when a kernel is defined, and other tests of this process import the same modules compiled.
float32 and float16 only: it rounds bfloat16 wrongly.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.parametrize("name", ["interpreted.py", "interpreted_rotary.py"])
def test_in_the_interpreter(name):
    file = Path(__file__).with_name(name)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(file)]
    done = subprocess.run(
        command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout
