"""Records that ship with the kernels, and when they say that a compiler's own code is faster."""

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from fk_plugin import records, registry

H200 = "NVIDIA H200"


def _row(**changes: object) -> str:
    row = {"kernel": "triton_rows", "source": "S", "mode": "compile", "workload": "w-8", "tokens": 8}
    return json.dumps({**row, "ratio": [1.1, 1.0, 1.2], **changes})


@pytest.fixture
def slower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """(lines of a record file) -> the verdict on a kernel with the hash S."""
    monkeypatch.setattr(registry, "kernel_folders", lambda: [tmp_path])
    kernel = replace(registry.kernel("silu_and_mul", "canary"), name="triton_rows", source="S")
    file = tmp_path / "records" / "nvidia-h200" / "silu_and_mul.jsonl"
    file.parent.mkdir(parents=True)

    def verdict(*lines: str) -> str | None:
        file.write_text("\n".join(lines))
        records._rows.cache_clear()
        return records.slower_when_compiled(kernel, H200)

    yield verdict
    records._rows.cache_clear()


def test_one_bucket_that_loses_is_enough_and_is_named(slower) -> None:
    assert slower() is None and slower(_row()) is None
    reason = slower(_row(), _row(tokens=64, workload="w-64", ratio=[0.9, 0.89, 0.91]), _row(ratio=[0.97, 0.96, 0.98]))
    assert "silu_and_mul=triton_rows runs at 0.90" in reason and "64 tokens (w-64, measured on NVIDIA H200)" in reason


@pytest.mark.parametrize(
    "harmless", [{"ratio": [0.98, 0.96, 0.995]}, {"mode": "graph"}, {"source": "older"}, {"kernel": "another"}], ids=str
)
def test_what_does_not_count(slower, harmless: dict[str, object]) -> None:
    losing = {"ratio": [0.5, 0.4, 0.6]}
    assert slower(_row(**losing)) is not None
    assert slower(_row(**{**losing, **harmless})) is None


@pytest.mark.parametrize("broken", [_row()[:40], "[1]", "{}", _row(ratio=[1]), _row(tokens="8"), _row(ratio=[1, 2, 1])])
def test_a_broken_line_is_named_and_skipped(slower, broken: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert slower(broken, _row(ratio=[0.5, 0.4, 0.6])) is not None
    assert "silu_and_mul.jsonl, line 1 is no record" in caplog.text


def test_the_shipped_records_are_of_the_shipped_kernels() -> None:
    """A kernel that was changed without measuring it again has records that count for nothing."""
    for task, kernel, wanted in (
        ("silu_and_mul", "triton_rows", True),
        ("gelu_and_mul", "triton_rows", True),
        ("rms_norm", "triton_rows", True),
        ("layer_norm", "triton_rows", True),
        ("fused_add_rms_norm", "triton_rows", False),
        ("rotary_embedding", "triton_heads", False),
    ):
        found = registry.kernel(task, kernel)
        assert {row["mode"] for row in records.of(found, H200)} >= {"compile"}, task
        assert (records.slower_when_compiled(found, H200) is not None) is wanted, task
        assert records.slower_when_compiled(found, "another GPU") is None
