"""One more rounding: a quarter of the elements move to a neighbour, and nothing else does."""

from pathlib import Path

import pytest
import torch

from fk_plugin import attach, proof, rounding


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_quarter_of_the_elements_move_by_one_representable_value(dtype: torch.dtype) -> None:
    before = torch.randn(200, 300, dtype=torch.float32).to(dtype)
    after = before.clone()
    rounding.again(after)
    up = torch.nextafter(before, torch.full_like(before, torch.inf))
    down = torch.nextafter(before, torch.full_like(before, -torch.inf))
    assert ((after == before) | (after == up) | (after == down)).all()
    for neighbour in (up, down):
        assert abs((after == neighbour).float().mean() - 0.125) < 0.01


def test_zeros_infinities_integers_and_kept_results_stay() -> None:
    special = torch.tensor([0.0, torch.inf, -torch.inf] * 1000)
    integers, kept = torch.arange(1000), torch.randn(1000)
    copies = [t.clone() for t in (special, integers, kept)]
    rounding.again((special, integers, None, kept), keep=(3,))
    for tensor, copy in zip((special, integers, kept), copies, strict=True):
        assert torch.equal(tensor, copy)


def test_a_view_is_changed_within_its_bounds() -> None:
    whole = torch.ones(64, 48)
    rounding.again(whole[:, 8:24])
    assert (whole[:, 8:24] != 1).any()
    assert (whole[:, :8] == 1).all() and (whole[:, 24:] == 1).all()


class _Norm:
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.clone(), x


def test_a_traced_process_rounds_only_what_it_is_asked_to(tmp_path: Path) -> None:
    attach.trace_calls(_Norm, "forward", lambda *_: "fused_add_rms_norm")
    x = torch.randn(1000)
    proof.open_folder(tmp_path)
    try:
        assert torch.equal(_Norm().forward(x)[0], x)
        rounding.ask(tmp_path, ["silu_and_mul"])
        assert torch.equal(_Norm().forward(x)[0], x)
        rounding.ask(tmp_path, ["silu_and_mul", "fused_add_rms_norm"])
        before = x.clone()
        normed, residual = _Norm().forward(x)
    finally:
        proof.open_folder(None)
    assert 0 < (normed != before).float().mean() < 0.5
    assert torch.equal(residual, before), "the residual sum has no freedom"
