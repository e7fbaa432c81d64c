"""vLLM's compile cache with and without the plugin, in the mode that GPUs use.

vLLM re-uses ahead-of-time artifacts by a key that knows no plugins: a graph that was compiled without one is loaded
into a process with it, and none of its kernels is called; nothing says so. On CPU vLLM turns this mode off, so these
tests turn it on again, with a plugin of their own in every process.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from engine_support import IN_PROCESS, KERNELS, SITES, assert_calls, engine, forced_compilation

from fk_plugin import proof
from fk_plugin.e2e.client import Engine

pytestmark = pytest.mark.engine
pytest.importorskip("vllm")

LOADED = "Directly load AOT compilation from path"


@dataclass(frozen=True)
class Seen:
    """What one start showed: whether it loaded an artifact, and how often our operators were called."""

    loaded: bool
    calls: int


@pytest.fixture
def start(tiny: Path, tmp_path: Path) -> Callable[..., Seen]:
    """Start vLLM on one cache root, plugged or not; calls are checked against the expectation when plugged."""
    forced = forced_compilation(tmp_path / "plugin")
    number = 0

    def run(mode: str, *, plugged: bool, **environment: str) -> Seen:
        nonlocal number
        number += 1
        base = {"VLLM_CACHE_ROOT": str(tmp_path / "cache"), **IN_PROCESS}
        choice = {"FK_KERNELS": KERNELS, "FK_PLUGIN": "auto"} if plugged else {"FK_PLUGIN": "off"}
        force = forced if mode == "VLLM_COMPILE" else {}
        folder = tmp_path / f"start-{number}"
        with engine("vllm", tiny, folder, eager=mode == "NONE", **base, **choice, **force, **environment) as started:
            assert started.described["compilation"] == mode, "the engine resolved another mode, so nothing is tested"
            started.generate([[1, 2, 3], [4, 5]], max_tokens=4)
            if plugged and not environment:
                assert_calls(started.proof, SITES)
            return Seen(LOADED in started.log.read_text(errors="replace"), _calls(started))

    return run


def _calls(started: Engine) -> int:
    counts = started.counts().values()
    assert any(proof.forwards(mine) > 3 for mine in counts), "no process counted a forward"
    return sum(used.seen for mine in counts for used in proof.usage(mine).values())


def test_an_artifact_from_a_run_without_the_plugin_is_not_loaded_with_it(start: Callable[..., Seen]) -> None:
    assert start("VLLM_COMPILE", plugged=False) == Seen(loaded=False, calls=0)
    plugged = start("VLLM_COMPILE", plugged=True)
    assert plugged.calls > 0 and not plugged.loaded


@pytest.mark.long
def test_without_the_fingerprint_the_stale_artifact_is_loaded_and_no_kernel_called(start: Callable[..., Seen]) -> None:
    """The fault itself: without it the test above would prove nothing."""
    assert start("VLLM_COMPILE", plugged=False, WITHOUT_THE_FIX="1").calls == 0
    assert start("VLLM_COMPILE", plugged=True, WITHOUT_THE_FIX="1") == Seen(loaded=True, calls=0)


@pytest.mark.long
@pytest.mark.parametrize("mode", ["NONE", "DYNAMO_TRACE_ONCE", "VLLM_COMPILE"])
@pytest.mark.parametrize("first", ["off", "on"])
def test_cold_and_warm_caches_in_both_orders(start: Callable[..., Seen], mode: str, first: str) -> None:
    """Each side cold or warm from the other side, then warm from itself; counts are checked in every start."""
    order = [first == "on", first != "on", first == "on", first != "on"]
    seen = [start(mode, plugged=plugged) for plugged in order]
    assert [s.calls > 0 for s in seen] == order
    # A side loads what it compiled itself, and never what the other side did.
    assert [s.loaded for s in seen] == [False, False, *([mode == "VLLM_COMPILE"] * 2)]
