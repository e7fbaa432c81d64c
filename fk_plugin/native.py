"""Compiles a kernel's C file once per machine and loads it with ctypes.

OpenMP calls in the object are left unresolved on purpose: they bind to the OpenMP library torch has already loaded.
Linking another one would give the process two thread pools, the second without the engine's core affinity.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from fk_plugin import env

# fp-contract off: a fused multiply-add would skip a rounding that the task's definition has. no-trapping-math: nobody
# reads the exception flags, and to keep them GCC leaves loops with comparisons unvectorised where there are no masks
# (AVX2: silu_and_mul 5.7x slower).
_FLAGS = (
    "-O3", "-march=native", "-fPIC", "-fopenmp", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math",
    "-std=gnu11",
)  # fmt: skip


def load(source: Path) -> ctypes.CDLL:
    """Compile `source` (C) if this machine has no build of it in FK_CACHE_DIR, and load it.

    Raises:
        RuntimeError: there is no C compiler, or it refuses the file (with its message).
    """
    import torch  # noqa: F401  the OpenMP symbols come with it

    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")
    if compiler is None:
        raise RuntimeError(f"{source.name} needs a C compiler, and neither $CC, cc nor gcc is on PATH")
    key = hashlib.sha256(source.read_bytes() + " ".join(_FLAGS).encode() + _machine().encode()).hexdigest()[:16]
    target = env.read().cache_dir / "native" / f"{source.stem}-{key}.so"
    if not target.exists():
        _build(compiler, source, target)
    return ctypes.CDLL(str(target))


def _machine() -> str:
    """What -march=native depends on; a cache on a shared home folder must not serve another processor."""
    try:
        text = Path("/proc/cpuinfo").read_text()
        return next(line for line in text.splitlines() if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _build(compiler: str, source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as work:
        object_file, library = Path(work, "x.o"), Path(work, "x.so")
        for command in (
            [compiler, *_FLAGS, "-c", str(source), "-o", str(object_file)],
            [compiler, "-shared", str(object_file), "-o", str(library)],
        ):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise RuntimeError(f"{' '.join(command)} failed: {done.stderr.strip()[-500:]}")
        library.replace(target)  # atomic: several ranks may build at once
