"""Case 58: a compile cache that knows nothing of an operator's body served a stale kernel (pytorch#160472, #144344).

Two guards: the hash of a kernel's source is part of the fingerprint that engines add to their compile-cache keys, and
the operator is opaque, so that a cached graph calls whatever kernel is in force now.
"""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fk_plugin import env, registry, select

PLAIN = "import torch\ndef silu_and_mul(x, round_activation=True):\n    return x[..., ::2] * {value}\n"
DECORATED = (
    "from fk_plugin.kernel import Requires, kernel\n"
    "@kernel('silu_and_mul', requires=Requires(device='cpu', dtypes=('float32',)))\n" + PLAIN.split("\n", 1)[1]
)
# Only the operator, so that Inductor's artifact is cached without compiling C++; an engine caches the same way.
CHILD = """
import json, sys
import torch
from torch._dynamo.utils import counters
from fk_plugin import dispatch, registry
kernel = registry.kernel("silu_and_mul", sys.argv[1])
dispatch.operator(registry.task("silu_and_mul")).use(kernel, strict=True)
compiled = torch.compile(lambda x: torch.ops.fk.silu_and_mul(x), fullgraph=True)
values = compiled(torch.ones(2, 8)).unique().tolist()
hits = counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"]
print(json.dumps({"values": values, "hits": hits, "source": kernel.source}))
"""


def fingerprint(spec: str) -> str:
    """What engines add to their compile-cache keys for this choice."""
    return select.plan(env.read({"FK_KERNELS": f"silu_and_mul={spec}"})).fingerprint


@pytest.mark.parametrize("text", [PLAIN, DECORATED], ids=["function", "decorated"])
def test_case_58_two_bodies_under_one_name_have_two_fingerprints(text: str, tmp_path: Path) -> None:
    found = []
    for value in ("7.0", "8.0", "7.0"):
        folder = tmp_path / str(len(found))
        folder.mkdir()
        (folder / "mine.py").write_text(text.format(value=value))
        found.append(fingerprint(str(folder / "mine.py")))
    first, changed, same = found
    assert first.split("@")[0] == changed.split("@")[0], "the name alone tells nothing"
    assert first != changed
    assert first == same, "the same body elsewhere is the same code; a cache may serve it"


def test_case_58_the_c_file_beside_a_kernel_is_part_of_its_hash(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PLAIN.format(value=1))
    (tmp_path / "mine.c").write_text("int one;\n")
    spec = str(tmp_path / "mine.py")
    before = fingerprint(spec)
    (tmp_path / "mine.c").write_text("int two;\n")
    assert fingerprint(spec) != before


def test_case_58_a_module_that_the_kernel_imports_from_its_folder_is_part_of_its_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "from case_58_body import scaled\ndef silu_and_mul(x, round_activation=True):\n    return scaled(x)\n"
    found = []
    for value in (7, 8):
        folder = tmp_path / str(value)
        folder.mkdir()
        (folder / "mine.py").write_text(body)
        (folder / "case_58_body.py").write_text(f"def scaled(x):\n    return x[..., ::2] * {value}\n")
        monkeypatch.syspath_prepend(folder)
        monkeypatch.delitem(sys.modules, "case_58_body", raising=False)
        found.append(fingerprint(str(folder / "mine.py")))
    assert found[0] != found[1]


def test_case_58_every_kernel_of_the_package_has_the_hash_of_a_file() -> None:
    nothing = hashlib.sha256().hexdigest()[:12]
    sources = [k.source for task in registry.tasks() for k in registry.kernels(task)[0].values()]
    assert len(sources) >= 10 and nothing not in sources
    assert len(set(sources)) == len(sources), "each kernel has a file of its own"


def test_case_58_a_cached_graph_runs_the_kernel_in_force_now(tmp_path: Path) -> None:
    """Two fresh processes share one Inductor cache; the second must hit it and still run the changed body."""
    file = tmp_path / "mine.py"
    variables = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    variables |= {"TORCHINDUCTOR_FX_GRAPH_CACHE": "1", "TORCHINDUCTOR_AUTOGRAD_CACHE": "1"}
    found = []
    for value in (7.0, 8.0):
        file.write_text(PLAIN.format(value=value))
        command = [sys.executable, "-c", CHILD, str(file)]
        done = subprocess.run(command, capture_output=True, text=True, env=variables, check=False, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr[-3000:]
        found.append(json.loads(done.stdout.splitlines()[-1]))
    first, second = found
    assert first["hits"] == 0 and second["hits"] > 0, "without a hit in the cache this proves nothing"
    assert first["values"] == [7.0]
    assert second["values"] == [8.0], "a stale kernel ran"
    assert first["source"] != second["source"]
