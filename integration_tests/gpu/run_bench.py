"""Checks of the sandbox that need a GPU; prints a table and writes $OUT/bench.json (default: the current folder).

    python integration_tests/gpu/run_bench.py [SECTION ...]      sections: see SECTIONS; default: all

Runs from a checkout without installation: where no entry points are installed it provides them itself.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
OUT = Path(os.environ.get("OUT", "."))
RESULTS: list[dict[str, Any]] = []


def provide_imports() -> None:
    """Source roots and entry points for this process and its children."""
    roots = [ROOT, ROOT / "adapters", ROOT / "tasks", ROOT / "kernels", HERE.parent]
    if not entry_points(group="fk_plugin.tasks"):
        made = Path(tempfile.mkdtemp(prefix="fk-entry-points-"))
        info = made / "fk_plugin-0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fk-plugin\nVersion: 0\n")
        (info / "entry_points.txt").write_text(
            "[fk_plugin.tasks]\nbuiltin = fk_tasks\n[fk_plugin.kernels]\nbuiltin = fk_kernels\n"
        )
        roots.append(made)
    sys.path[:0] = [str(path) for path in roots]
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(path) for path in roots] + ([before] if before else []))


def note(section: str, name: str, passed: bool, detail: str, **data: Any) -> None:
    """One line of the table, printed at once."""
    RESULTS.append({"section": section, "name": name, "passed": passed, "detail": detail, **data})
    print(f"{'ok  ' if passed else 'FAIL'} {section:10} {name:44} {detail}", flush=True)


def setting(spec: str, workloads: list[str], **more: Any) -> Any:
    """A Setting of named workloads."""
    from fk_plugin.bench import locate
    from fk_plugin.bench.child import Limits
    from fk_plugin.bench.setting import Setting

    task = locate.task(spec)
    chosen = tuple(w for w in task.workloads if w.name in workloads)
    assert len(chosen) == len(workloads), f"{task.name} has {[w.name for w in task.workloads]}"
    values = {
        "spec": spec, "device": "cuda", "mode": "graph", "workloads": chosen, "edge_workloads": task.edge_workloads,
        "limits": Limits(load_s=120, call_s=60), "budget_s": 1.5, "least": 10, "most": 30,
    }  # fmt: skip
    return Setting(**{**values, **more})


def cheats() -> None:
    """Every cheat by its status, and what it becomes without the check; no honest kernel accused."""
    import cheat_files

    from fk_plugin.bench.checks import Checks
    from fk_plugin.bench.session import Session
    from fk_plugin.bench.status import Status

    base = setting("silu_and_mul", ["llama-3.1-8b-decode-256"], baselines=("reference",))
    harmless = (Status.OK, Status.NOISY)
    with Session(base) as session:
        for case in cheat_files.load("cheats", "cuda"):
            (row,) = session.examine(str(case.file))
            caught = row.verdict.status is case.status
            note("cheat", case.name, caught, f"{row.verdict.status.value}: {row.verdict.reason}")
            (row,) = session.examine(
                str(case.file), dataclasses.replace(base, checks=Checks(case.by | {"parent_clock"}))
            )
            passes = row.verdict.status in (harmless if case.without is Status.OK else (case.without,))
            note("without", case.name, passes, f"{row.verdict.status.value}: {row.verdict.reason}")
        for case in cheat_files.load("honest", "cuda"):
            (row,) = session.examine(str(case.file))
            text = f"{row.verdict.status.value} {row.verdict.reason}"
            note("honest", case.name, row.verdict.status in harmless, text)


def failures() -> None:
    """Failures that only a GPU has: one line each, and the next candidate runs."""
    from fk_plugin.bench.child import Limits
    from fk_plugin.bench.session import Session
    from fk_plugin.bench.status import Status

    file = HERE / "kernels" / "failures.py"
    limits = Limits(load_s=120, call_s=10)
    wanted = {
        "illegal_access": Status.CRASHED, "wrong_device": Status.BAD_OUTPUT, "out_of_memory": Status.OUT_OF_MEMORY,
        "infinite_loop": Status.TIMEOUT,
    }  # fmt: skip
    base = setting("silu_and_mul", ["smollm2-135m-decode-32"], baselines=("reference",), limits=limits)
    with Session(base) as session:
        for name, status in wanted.items():
            (row,) = session.examine(f"{file}:{name}")
            note("failure", name, row.verdict.status is status, f"{row.verdict.status.value}: {row.verdict.reason}")
        (row,) = session.examine("triton_rows")
        note("failure", "the next candidate runs", row.verdict.status.value in ("OK", "NOISY"), row.verdict.reason)


def against_itself() -> None:
    """A/A: the interval contains 1 in 95 % of cells, and is narrower than 2 % above 20 us."""
    from fk_plugin.bench.session import Session

    cells, samples = [], []
    for attribute, kernel in (
        ("SILU_AND_MUL", "triton_rows"), ("RMS_NORM", "triton_rows"), ("SOFTMAX", "triton_chunks"),
    ):  # fmt: skip
        spec = f"{HERE / 'tasks.py'}:{attribute}"
        from fk_plugin.bench import locate

        found = [w.name for w in locate.task(spec).workloads if w.name.startswith("llama")]
        names = [n for n in found if not n.endswith(("decode-8", "decode-128"))]
        for mode in ("graph", "eager"):
            chosen = setting(spec, names, mode=mode, baselines=("itself",), edge_workloads=(), hidden=0,
                             budget_s=1.5 if mode == "graph" else 6.0, least=40, most=60)  # fmt: skip
            for row in Session(chosen).run([kernel]):
                if row.ratio is None:
                    note("A/A", f"{attribute} {row.workload} {mode}", False, str(row.verdict))
                    continue
                cells.append((f"{attribute} {mode}", row.workload, row.candidate_s, row.ratio))
                if row.warm is not None:
                    cells.append((f"{attribute} {mode} warm", row.workload, row.candidate_s, row.warm))
                samples.append({"cell": f"{attribute} {mode} {row.workload}", **row.samples})
    inside = sum(ratio.low <= 1 <= ratio.high for _, _, _, ratio in cells)
    for name, workload, seconds, ratio in cells:
        if not ratio.low <= 1 <= ratio.high or (seconds > 20e-6 and ratio.half_width > 0.02):
            text = f"{ratio.value:.4f} [{ratio.low:.4f}, {ratio.high:.4f}] at {seconds * 1e6:.1f} us"
            print(f"     A/A outlier: {name} {workload} {text}", flush=True)
    wide = [c for c in cells if c[2] > 20e-6 and c[3].half_width > 0.02]
    data = [{"cell": f"{n} {w}", "us": s * 1e6, "ratio": [r.value, r.low, r.high]} for n, w, s, r in cells]
    note("A/A", "interval contains 1.00", inside >= 0.95 * len(cells), f"{inside} of {len(cells)} cells", cells=data,
         samples=samples)  # fmt: skip
    over = sum(c[2] > 20e-6 for c in cells)
    note("A/A", "narrower than 2 % above 20 us", not wide, f"{over - len(wide)} of {over} cells")


def copies() -> None:
    """A copy of N bytes takes bytes / bandwidth; preparation is free; side streams are charged."""

    from fk_plugin.bench.session import Session

    spec, file = f"{HERE / 'tasks.py'}:COPY", HERE / "kernels" / "copy.py"
    sizes = ["contiguous-64-MiB", "contiguous-128-MiB", "contiguous-256-MiB"]
    seconds: dict[str, dict[str, float]] = {}
    for mode in ("graph", "eager"):
        plain = [*sizes, "slow-256-MiB"] if mode == "graph" else [sizes[-1], "slow-256-MiB"]
        base = setting(spec, plain, mode=mode, baselines=("reference",), budget_s=1.5 if mode == "graph" else 6.0)
        with Session(base) as session:
            for name in ("copy", "slow_prepare", "side_stream", *(("unjoined",) if mode == "eager" else ())):
                few = tuple(w for w in base.workloads if name == "copy" or w.name == sizes[-1])
                rows = session.examine(f"{file}:{name}", dataclasses.replace(base, workloads=few))
                seconds[f"{mode} {name}"] = {r.workload: r.candidate_s or float("nan") for r in rows}
                for row in rows:
                    if row.failed:
                        note("copy", f"{mode} {name} {row.workload}", False, str(row.verdict))
    for size in sizes:
        mib = int(size.split("-")[1])
        wanted = _per_copy(mib << 20)
        got = seconds["graph copy"][size]
        rate = 2 * (mib << 20) / wanted / 1e12
        note("copy", f"graph {size}", abs(got / wanted - 1) <= 0.03,
             f"{got * 1e6:.1f} us, {wanted * 1e6:.1f} us by bytes / bandwidth ({rate:.2f} TB/s)")  # fmt: skip
    for mode in ("graph", "eager"):
        plain = seconds[f"{mode} copy"]
        for name, size, low, high in (
            ("copy", "slow-256-MiB", 0.97, 1.03), ("slow_prepare", "contiguous-256-MiB", 0.97, 1.03),
            ("side_stream", "contiguous-256-MiB", 0.97, 1.4), ("unjoined", "contiguous-256-MiB", 0.97, 1.4),
        ):  # fmt: skip
            if f"{mode} {name}" in seconds:
                ratio = seconds[f"{mode} {name}"][size] / plain["contiguous-256-MiB"]
                note("copy", f"{mode} {name} {size}", low <= ratio <= high, f"{ratio:.3f} of the plain copy's time")


def _per_copy(size: int) -> float:
    """Seconds per copy by the host's clock, over one graph of 200 copies between pairs of buffers beyond the cache."""
    import torch

    pairs = [(torch.randn(size // 4, device="cuda"), torch.empty(size // 4, device="cuda")) for _ in range(8)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for n in range(200):
            source, target = pairs[n % len(pairs)]
            target.copy_(source)
    best = float("inf")
    for _ in range(4):
        torch.cuda.synchronize()
        start = time.perf_counter()
        graph.replay()
        torch.cuda.synchronize()
        best = min(best, (time.perf_counter() - start) / 200)
    return best


def minute() -> None:
    """`fk bench rms_norm` with 5 workloads takes less than 60 s."""
    five = "smollm2-135m-decode-1,smollm2-135m-decode-8,smollm2-135m-decode-32,llama-3.1-8b-decode-1"
    five += ",llama-3.1-8b-decode-32"
    seconds = _fk("rms_norm", "--workloads", five)
    note("command", "rms_norm, 5 workloads, under 60 s", seconds < 60, f"{seconds:.1f} s")


def commands() -> None:
    """`fk bench` as a user runs it, in every mode, with every task that has a CUDA kernel."""
    _fk("rms_norm", "--workloads", "llama-3.1-8b-decode-32", "--mode", "compile")
    _fk("silu_and_mul", "--workloads", "llama-3.1-8b-*-*", "--baselines", "reference,torch.compile")
    for task in ("fused_add_rms_norm", "softmax", "store_kv_cache"):
        _fk(task, "--workloads", "llama-3.1-8b-decode-32,llama-3.1-8b-prefill-512")
    _fk("grouped_gemm", "--workloads", "*zipf-decode-32")


def figures(mode: str) -> None:
    """Every kernel of the norm, rotary and activation family over the token buckets of a Llama-3.1-8B."""
    for task in ("silu_and_mul", "gelu_and_mul", "rms_norm", "fused_add_rms_norm", "layer_norm", "rotary_embedding",
                 "rope_kv_write"):  # fmt: skip
        buckets = ("decode-1", "decode-8", "decode-32", "decode-256", "prefill-2048", "prefill-8192")
        _fk(task, "--mode", mode, "--workloads", ",".join(f"llama-3.1-8b-{b}" for b in buckets))


def ranks() -> None:
    """Two ranks over NCCL, where there are two GPUs."""
    import torch

    if torch.cuda.device_count() < 2:
        print("     ranks: skipped, one GPU only", flush=True)
        return
    for task in ("all_reduce", "row_parallel_linear"):
        file = HERE.parent / "ranks" / f"{task}.py"
        _fk(task, "--kernel", str(file), "--gpus", "2", "--workloads", "llama-3.1-8b*decode-32", "--mode", "eager")


def _fk(task: str, *options: str) -> float:
    name = " ".join((task, *options)).replace("/", "_").replace(" ", "_")[:60]
    target = OUT / f"bench-{len(RESULTS)}.json"
    command = [sys.executable, "-m", "fk_plugin.cli.main", "bench", task, *options, "--json", str(target)]
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    seconds = time.perf_counter() - start
    print(done.stdout, done.stderr[-1500:], sep="\n", flush=True)
    rows = json.loads(target.read_text())["rows"] if target.exists() else []
    target.unlink(missing_ok=True)
    note("command", name, done.returncode == 0, f"exit status {done.returncode}, {seconds:.1f} s", rows=rows)
    return seconds


SECTIONS: dict[str, Callable[[], None]] = {
    "minute": minute, "commands": commands, "cheats": cheats, "failures": failures, "copies": copies,
    "aa": against_itself, "ranks": ranks, "graph": functools.partial(figures, "graph"),
    "compile": functools.partial(figures, "compile"),
}  # fmt: skip


def main() -> int:
    """Run the sections; a section that breaks is a failure with its traceback, and the next one runs."""
    provide_imports()
    for name in sys.argv[1:] or list(SECTIONS):
        start = time.perf_counter()
        try:
            SECTIONS[name]()
        except Exception as error:  # noqa: BLE001  boundary: the other sections' results must not be lost
            note(name, "section", False, f"{type(error).__name__}: {error}", traceback=traceback.format_exc())
            print(traceback.format_exc(), flush=True)
        print(f"     section {name}: {time.perf_counter() - start:.0f} s", flush=True)
        OUT.mkdir(parents=True, exist_ok=True)
        (OUT / "bench.json").write_text(json.dumps(RESULTS, indent=1, default=str) + "\n")
    failed = [r for r in RESULTS if not r["passed"]]
    print(f"{len(RESULTS) - len(failed)} of {len(RESULTS)} passed; written to {OUT / 'bench.json'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
