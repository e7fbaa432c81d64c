"""Both engines' layers, built directly; each fixture skips where its engine is not installed."""

from types import SimpleNamespace

import pytest
import torch


@pytest.fixture(scope="module")
def vllm_config():
    """vLLM's layers ask for the current configuration when they are built."""
    pytest.importorskip("vllm", reason="vLLM is not installed")
    from vllm import _custom_ops  # noqa: F401  registers the operators that some layers look up
    from vllm.config import VllmConfig, set_current_vllm_config

    with set_current_vllm_config(VllmConfig()):
        yield


@pytest.fixture
def sglang_args(monkeypatch):
    """SGLang's rotary layers ask the running server's arguments for one thing, which a library user does not set."""
    pytest.importorskip("sglang", reason="SGLang is not installed")
    from sglang.srt.layers.rotary_embedding import base

    arguments = SimpleNamespace(rl_on_policy_target=None)
    monkeypatch.setattr(base, "get_server_args", lambda: arguments, raising=False)  # 0.5.23 asks no more


def _same(ours, theirs):
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    bits = (t.contiguous().view(torch.int16 if t.element_size() == 2 else torch.int32) for t in (ours, theirs))
    assert torch.equal(*bits), f"{float((ours != theirs).float().mean()):.1%} of elements differ"


@pytest.fixture
def same():
    """(ours, theirs) -> None, or AssertionError unless every bit is equal."""
    return _same
