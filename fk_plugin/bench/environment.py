"""Where a measurement was taken: hardware, software, clocks and temperature."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
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


def state(device: str) -> dict[str, str]:
    """Clocks (MHz), temperature (C), power (W) and throttle reasons of the first GPU; the load average on a CPU."""
    if device == "cuda":
        return _smi(*_QUERY)
    return {"load": " ".join(f"{x:.2f}" for x in os.getloadavg())}


def _smi(*fields: str) -> dict[str, str]:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return {"note": "nvidia-smi is not on PATH, so clocks and temperature are unknown"}
    command = [tool, "-i", "0", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    if done.returncode != 0:
        return {"note": f"nvidia-smi failed: {done.stdout.strip()[:100]}"}
    return dict(zip(fields, (v.strip() for v in done.stdout.strip().split(",")), strict=False))
