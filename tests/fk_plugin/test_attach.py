"""What happens once a model is loaded: sites listed, forwards counted however the engine calls, strict enforced."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fk_plugin import attach, env, proof
from fk_plugin.counters import read_events
from fk_plugin.errors import StrictError


class _Act(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class _Model(torch.nn.Module):
    def __init__(self, calls: bool = False) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(_Act() for _ in range(3))
        self.calls = calls

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
            if self.calls:
                proof.count("call|t|k|1")
        return x


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    proof.open_folder(tmp_path)
    yield tmp_path
    proof.open_folder(None)


def _settings(folder: Path, mode: str = "auto") -> env.Settings:
    return env.read({"FK_PLUGIN": mode, "FK_PROOF_DIR": str(folder)})


def _is_act(_task: str, module: object) -> bool:
    return isinstance(module, _Act)


def test_forwards_are_counted_through_call_and_through_forward(folder: Path) -> None:
    """SGLang calls model.forward(...) itself, past every torch hook."""
    model = _Model()
    sites = attach.model_loaded(model, _settings(folder), planned=["t"], bound=_is_act)
    model(torch.ones(1))
    model.forward(torch.ones(1))
    assert proof.forwards(proof.snapshot()) == 2
    assert sites == {"t": ["layers.0", "layers.1", "layers.2"]}
    assert [e["bound"] for e in read_events(folder) if e["event"] == "model"] == [sites]


def test_strict_refuses_a_task_that_is_bound_nowhere_and_auto_does_not(folder: Path) -> None:
    with pytest.raises(StrictError, match="task t is not bound anywhere in _Model"):
        attach.model_loaded(_Model(), _settings(folder, "strict"), planned=["t"], bound=lambda *_: False)
    assert attach.model_loaded(_Model(), _settings(folder), planned=["t"], bound=lambda *_: False) == {"t": []}
    assert [e["event"] for e in read_events(folder)].count("refused") == 1


def test_strict_refuses_a_task_that_the_first_forward_never_called(folder: Path) -> None:
    model = _Model()
    attach.model_loaded(model, _settings(folder, "strict"), planned=["t"], bound=_is_act)
    with pytest.raises(StrictError, match="bound but was never called in the first forward"):
        model(torch.ones(1))


def test_strict_is_content_when_the_operator_was_called(folder: Path) -> None:
    model = _Model(calls=True)
    attach.model_loaded(model, _settings(folder, "strict"), planned=["t"], bound=_is_act)
    model(torch.ones(1))
    model(torch.ones(1))
    assert proof.forwards(proof.snapshot()) == 2


def test_a_trace_counts_each_site_by_name_and_wraps_once(folder: Path) -> None:
    class Owner(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

        @staticmethod
        def plain(x: int) -> int:
            return x

    for _ in range(2):
        attach.trace_calls(Owner, "forward", lambda *_: "t")
    model = torch.nn.Sequential(Owner(), Owner())
    attach.name_sites(model, [Owner])
    model[0](torch.ones(1))
    model[0](torch.ones(1))
    assert model[1](torch.ones(1)).item() == 2.0
    Owner()(torch.ones(1))
    assert proof.engine_calls(proof.snapshot()) == {"t": {"0": 2, "1": 1, "outside the model": 1}}


def test_strict_is_content_when_one_of_the_tasks_of_the_same_modules_was_called(folder: Path) -> None:
    """The last stage of a pipeline: each of its norms has a residual to add."""
    model = _Model(calls=True)
    attach.model_loaded(model, _settings(folder, "strict"), planned=["t", "u"], bound=_is_act)
    model(torch.ones(1))
    apart = _Model(calls=True)
    first = apart.layers[0]
    attach.model_loaded(
        apart, _settings(folder, "strict"), planned=["t", "u"],
        bound=lambda task, module: _is_act(task, module) and (task == "t" or module is first),
    )  # fmt: skip
    with pytest.raises(StrictError, match="task u is bound but was never called"):
        apart(torch.ones(1))


def test_strict_does_not_insist_on_calls_that_the_engine_may_make_itself(folder: Path) -> None:
    model = _Model()
    shared = {"t": "a pass fuses some", "u": "bound nowhere, so not shared"}
    settings = _settings(folder, "strict")
    attach.model_loaded(model, settings, planned=["t"], bound=_is_act, shared=shared)
    model(torch.ones(1))
    assert [e["shared"] for e in read_events(folder) if e["event"] == "model"] == [{"t": "a pass fuses some"}]
