"""Norms that a fusion pass of vLLM's looks for: the pass finds them, and what it leaves comes to our kernels."""

import re
from pathlib import Path

import pytest
from engine_support import IN_PROCESS, KERNELS, SITES, assert_calls, engine, forced_compilation

from fk_plugin.counters import read_events

pytestmark = pytest.mark.engine
pytest.importorskip("vllm")


def test_the_pass_finds_every_norm_and_what_it_leaves_is_ours(tiny: Path, tmp_path: Path) -> None:
    forced = forced_compilation(tmp_path / "plugin")
    base = {"VLLM_CACHE_ROOT": str(tmp_path / "cache"), "FUSES_NORMS": "1", **IN_PROCESS, **forced}
    plugged = {"FK_KERNELS": KERNELS, "FK_PLUGIN": "strict"}
    with engine("vllm", tiny, tmp_path / "start", eager=False, **base, **plugged) as started:
        assert started.described["compilation"] == "VLLM_COMPILE"
        started.generate([[1, 2, 3], [4, 5]], max_tokens=4)
        assert_calls(started.proof, SITES)
        found = re.findall(r"the fusion pass found (\d+) norms", started.log.read_text(errors="replace"))
    assert sum(map(int, found)) > 0, "the class stands in vLLM's way, or no pass ran"
    shared = [event["shared"] for event in read_events(started.proof) if event["event"] == "model"]
    assert [sorted(tasks) for tasks in shared] == [["fused_add_rms_norm", "rms_norm"]]
