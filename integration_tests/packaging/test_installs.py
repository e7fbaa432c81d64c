"""Wheel and editable installs expose the same modules, entry points and data; light imports stay light."""

import json
import subprocess
import time
from pathlib import Path

import environments
import pytest

_ASK = """
import json, pkgutil
from importlib.metadata import entry_points, distribution
import fk_plugin, fk_tasks, fk_kernels, fk_adapters
names = []
for package in (fk_plugin, fk_tasks, fk_kernels, fk_adapters):
    names += [m.name for m in pkgutil.walk_packages(package.__path__, package.__name__ + ".")]
points = sorted(f"{e.group} {e.name} {e.value}" for e in distribution("fk-plugin").entry_points)
from pathlib import Path
data = sorted(str(p.relative_to(Path(fk_kernels.__path__[0]))) for p in Path(fk_kernels.__path__[0]).rglob("*")
              if p.suffix in (".c", ".cu", ".jsonl"))
from fk_plugin import registry
kernels = sorted(k for t in registry.tasks() for k in registry.kernels(t)[0])
try:
    import kernels as foreign
    foreign = str(getattr(foreign, "__file__", None) or list(foreign.__path__))
except ImportError:
    foreign = None
print(json.dumps({"names": sorted(names), "points": points, "data": data, "kernels": kernels, "foreign": foreign}))
"""


def _ask(python: str, folder: Path, code: str = _ASK) -> str:
    done = subprocess.run([python, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def installs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A python with the wheel and one with the editable install, by kind."""
    folder = tmp_path_factory.mktemp("envs")
    return {kind: environments.overlay("engines-cpu", kind, folder / kind) for kind in ("wheel", "editable")}


def test_both_kinds_expose_the_same(installs: dict[str, str], tmp_path: Path) -> None:
    wheel, editable = (json.loads(_ask(installs[kind], tmp_path)) for kind in ("wheel", "editable"))
    assert wheel == editable
    assert "fk_kernels.silu_and_mul.triton_rows" in wheel["names"]
    assert "silu_and_mul/cpu_fused.c" in wheel["data"]
    assert {"cpu_fused", "triton_rows", "canary"} <= set(wheel["kernels"])
    groups = {point.split()[0] for point in wheel["points"]}
    assert groups == {"console_scripts", "vllm.general_plugins", "sglang.srt.plugins", "fk_plugin.tasks",
                      "fk_plugin.kernels", "fk_plugin.adapters"}  # fmt: skip


def test_the_package_called_kernels_is_hugging_faces_or_nobodys(installs: dict[str, str], tmp_path: Path) -> None:
    for python in installs.values():
        foreign = json.loads(_ask(python, tmp_path))["foreign"]
        assert foreign is not None and "site-packages/kernels/" in foreign and "fk" not in foreign.split("/")[-1]
    # Hide Hugging Face's package: then nothing may answer to the name.
    hide = "import sys; sys.modules.pop('kernels', None)\nimport importlib.machinery as m\n" + (
        "orig = m.PathFinder.find_spec\n"
        "def find(name, path=None, target=None):\n"
        "    spec = orig(name, path, target)\n"
        "    hf = name == 'kernels' and spec is not None and 'site-packages/kernels' in str(spec.origin)\n"
        "    return None if hf else spec\n"
        "m.PathFinder.find_spec = find\n"
    )
    for python in installs.values():
        assert json.loads(_ask(python, tmp_path, hide + _ASK))["foreign"] is None


def test_importing_the_core_does_not_import_torch(installs: dict[str, str], tmp_path: Path) -> None:
    code = "import sys, fk_plugin, fk_plugin.registry, fk_plugin.cli.main; print('torch' in sys.modules)"
    assert _ask(installs["wheel"], tmp_path, code).strip() == "False"


def test_what_an_engine_imports_is_small(installs: dict[str, str], tmp_path: Path) -> None:
    """With kernels in force: no bench, e2e, engine, coverage, cli, and none of the extras' packages."""
    code = """
import sys, os
os.environ["FK_KERNELS"] = "silu_and_mul=cpu_fused"
import torch
before = set(sys.modules)
from fk_plugin import attach, env, select
from fk_adapters.vllm import bindings, fallbacks, plugin
from fk_adapters.sglang import plugin
settings = env.read()
attach.put_in_force(select.plan(settings).kernels, settings)
new = set(sys.modules) - before
heavy = {"rich", "jinja2", "transformers", "gguf", "safetensors", "tokenizers", "pytest", "vllm", "sglang"}
parts = ("bench", "e2e", "engine", "coverage", "cli", "report")
print(sorted(m for m in new if m.split(".")[0] in heavy or m.startswith(tuple(f"fk_plugin.{p}" for p in parts))))
"""
    assert _ask(installs["wheel"], tmp_path, code).strip() == "[]"


def test_help_answers_at_once(installs: dict[str, str], tmp_path: Path) -> None:
    """0.3 s is the promise; the best of five, because the machine may be busy with something else."""
    fk = Path(installs["wheel"]).with_name("fk")
    times = []
    for _ in range(5):
        began = time.monotonic()
        done = subprocess.run([fk, "--help"], cwd=tmp_path, capture_output=True, text=True, check=True)
        times.append(time.monotonic() - began)
    assert "e2e" in done.stdout and "doctor" in done.stdout
    assert min(times) < 0.3, times


def test_doctor_and_list_speak_json(installs: dict[str, str], tmp_path: Path) -> None:
    fk = Path(installs["wheel"]).with_name("fk")
    done = subprocess.run([fk, "doctor", "--json"], cwd=tmp_path, capture_output=True, text=True, check=False)
    report = json.loads(done.stdout)
    assert done.returncode == 0 and report["problems"] == [], report["problems"]
    assert {e: [b["matches"] for b in v["bindings"]] for e, v in report["engines"].items()} == {
        "vllm": ["yes"] * len(report["engines"]["vllm"]["bindings"]),
        "sglang": ["yes"] * len(report["engines"]["sglang"]["bindings"]),
    }
    for what in ("tasks", "kernels", "bindings"):
        listed = subprocess.run([fk, "list", what, "--json"], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert "silu_and_mul" in {row["task"] for row in json.loads(listed.stdout)}


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({"VLLM_PLUGINS": "other"}, "VLLM_PLUGINS='other' keeps fk-plugin out of vllm"),
        ({"VLLM_PLUGINS": ""}, "VLLM_PLUGINS='' keeps fk-plugin out of vllm"),
        ({"SGLANG_PLUGINS": "other"}, "SGLANG_PLUGINS='other' keeps fk-plugin out of sglang"),
        ({"FK_PLUGIN": "off"}, "FK_PLUGIN=off keeps every kernel out"),
        ({"FK_KERNELS": "silu_and_mul=triton_rows"}, "cannot run here: it needs an NVIDIA GPU"),
        ({"FK_KERNELS": "silu_and_mul=tritn_rows"}, "did you mean triton_rows"),
        ({"FK_KERNELS": "softmax=cpu_chunks"}, "vllm: vllm has no site for task softmax"),
    ],
)
def test_doctor_names_what_stands_in_the_way(
    installs: dict[str, str], tmp_path: Path, variables: dict[str, str], sentence: str
) -> None:
    import os

    fk = Path(installs["wheel"]).with_name("fk")
    env = {**os.environ, **variables}
    done = subprocess.run([fk, "doctor", "--json"], cwd=tmp_path, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 1
    assert any(sentence in problem for problem in json.loads(done.stdout)["problems"]), done.stdout


def test_doctor_finds_a_leftover_of_an_uninstalled_plugin(installs: dict[str, str], tmp_path: Path) -> None:
    """A dist-info without its package is found by every engine, fails to load there, and is only logged."""
    import os

    ghost = tmp_path / "ghost-1.0.dist-info"
    ghost.mkdir()
    (ghost / "METADATA").write_text("Metadata-Version: 2.1\nName: ghost\nVersion: 1.0\n")
    (ghost / "entry_points.txt").write_text("[vllm.general_plugins]\nghost = ghost_module:register\n")
    fk = Path(installs["wheel"]).with_name("fk")
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([fk, "doctor", "--json"], cwd=tmp_path, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 1
    assert any("ghost_module" in problem and "dist-info" in problem for problem in json.loads(done.stdout)["problems"])
