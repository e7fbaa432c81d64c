"""SGLang with kernels on, off and wrong on purpose: call counts say which ran, and a wrong one must be seen.

Equal tokens prove nothing: a kernel that is silently unused gives the engine's own.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import pytest
from engine_support import KERNELS, SITES, assert_calls, engine, kernels_by_task

from fk_plugin.e2e import models
from fk_plugin.e2e.protocol import Completion

pytestmark = [pytest.mark.engine, pytest.mark.long]
pytest.importorskip("sglang")

# SGLang's Gemma has Llama's sites, with GeluAndMul in place of SiluAndMul.
_GEMMA = {
    "model_type": "gemma",
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 2048,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-05,
    "hidden_act": "gelu",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_PROMPTS = [list(range(3, 27)), [4, 5]]


@dataclass(frozen=True)
class Case:
    """A model, the kernels that `on` means for it, and the calls of each task in one forward."""

    model: Path
    kernels: str
    sites: dict[str, int]


@pytest.fixture(scope="module")
def cases(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    """By name."""
    config = tmp_path_factory.mktemp("gemma") / "config.json"
    config.write_text(json.dumps(_GEMMA))
    gemma = {"gelu_and_mul" if task == "silu_and_mul" else task: count for task, count in SITES.items()}
    return {
        "llama": Case(tiny, KERNELS, SITES),
        "gemma": Case(models.resolve(f"dummy:{config}", print), KERNELS.replace("silu", "gelu"), gemma),
    }


@pytest.fixture(scope="module")
def start(cases: dict[str, Case], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[float]]:
    """Start SGLang on a case's model; check calls and kernels; return the log-probabilities of its answers."""

    def run(case: str, expected: dict[str, tuple[str, int]], **environment: str) -> list[float]:
        with engine("sglang", cases[case].model, tmp_path_factory.mktemp(case), **environment) as started:
            answer = started.generate(_PROMPTS, max_tokens=4, logprobs=1, prompt_logprobs=True)
            assert_calls(started.proof, {task: count for task, (_, count) in expected.items()})
            assert kernels_by_task(started.proof) == {task: {kernel} for task, (kernel, _) in expected.items()}
        return _log_probabilities(answer.completions)

    return run


@pytest.fixture(scope="module")
def off(start: Callable[..., list[float]]) -> Callable[[str], list[float]]:
    """The log-probabilities of a case's model without the plugin, which counts forwards and no call; started once."""
    known: dict[str, list[float]] = {}

    def of(case: str) -> list[float]:
        if case not in known:
            known[case] = start(case, {}, FK_PLUGIN="off", FK_KERNELS=KERNELS)
        return known[case]

    return of


def _log_probabilities(completions: list[Completion]) -> list[float]:
    """Of the prompts' tokens and of the first generated one: later ones may follow other tokens."""
    return list(chain.from_iterable([*c.prompt, max(c.top[0].values())] for c in completions))


def _furthest(ours: list[float], theirs: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("case", ["llama", "gemma"])
def test_on_calls_each_kernel_as_often_as_the_model_has_sites(
    start: Callable[..., list[float]], off: Callable[[str], list[float]], cases: dict[str, Case], case: str
) -> None:
    named = dict(choice.split("=") for choice in cases[case].kernels.split(","))
    expected = {task: (named[task], count) for task, count in cases[case].sites.items()}
    on = start(case, expected, FK_PLUGIN="strict", FK_KERNELS=cases[case].kernels)
    assert _furthest(on, off(case)) < 0.1


@pytest.mark.parametrize(("case", "task"), [*(("llama", task) for task in SITES), ("gemma", "gelu_and_mul")])
def test_a_wrong_kernel_is_called_as_often_and_changes_what_the_model_says(
    start: Callable[..., list[float]], off: Callable[[str], list[float]], cases: dict[str, Case], case: str, task: str
) -> None:
    expected = {task: ("canary", cases[case].sites[task])}
    wrong = start(case, expected, FK_PLUGIN="strict", FK_KERNELS=f"{task}=canary")
    difference = _furthest(wrong, off(case))
    assert difference > 0.05  # with random weights a wrong rotation moves them least: 0.12
