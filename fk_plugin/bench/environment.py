"""Where a measurement was taken: hardware, software, clocks and temperature."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

_QUERY = ("clocks.sm", "clocks.mem", "temperature.gpu", "power.draw", "clocks_event_reasons.active")


def describe(device: str) -> dict[str, Any]:
    """Device, processor and versions."""
    found: dict[str, Any] = {
        "device": device_name(device),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    if device == "cuda":
        found["cuda"] = torch.version.cuda
        found["driver"] = _smi("driver_version").get("driver_version", "")
    else:
        found["threads"] = torch.get_num_threads()
        found["cores"] = len(os.sched_getaffinity(0))
    return found


def device_name(device: str) -> str:
    """The GPU's name, or the processor's."""
    if device == "cuda":
        return str(torch.cuda.get_device_name(0))
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def ask(device: str) -> Callable[[], dict[str, str]]:
    """Ask now for clocks (MHz), temperature (C), power (W) and throttle reasons of the first GPU, or a CPU's load.

    The answer comes with the returned call: nvidia-smi takes a second on a host with many GPUs.
    """
    if device == "cuda":
        return _smi_later(*_QUERY)
    load = {"load": " ".join(f"{x:.2f}" for x in os.getloadavg())}
    return lambda: load


def _smi(*fields: str) -> dict[str, str]:
    return _smi_later(*fields)()


def _smi_later(*fields: str) -> Callable[[], dict[str, str]]:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return lambda: {"note": "nvidia-smi is not on PATH, so clocks and temperature are unknown"}
    command = [tool, "-i", "0", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def collect() -> dict[str, str]:
        try:
            text = process.communicate(timeout=20)[0].strip()
        except subprocess.TimeoutExpired:
            process.kill()
            return {"note": "nvidia-smi gave no answer within 20 s"}
        if process.returncode != 0:
            return {"note": f"nvidia-smi failed: {text[:100]}"}
        return dict(zip(fields, (v.strip() for v in text.split(",")), strict=False))

    return collect
