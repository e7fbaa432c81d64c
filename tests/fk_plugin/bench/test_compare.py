"""The comparison alone: what passes, what does not, and by how much."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fk_plugin.bench import compare
from fk_plugin.bench.compare import Errors, excess, measure, rounding_excess, same_places, tolerance


def verdict(got: torch.Tensor, oracle: torch.Tensor, reference: torch.Tensor) -> str | None:
    """The rule of the sandbox with the reference as the only yardstick."""
    yardstick = measure(reference, oracle, reference)
    allowed = tolerance(yardstick, reference.dtype, same_rounding=True)
    errors = measure(got, oracle, reference)
    width = got.shape[-1]
    return (
        same_places(got, reference) or excess(errors, allowed, width) or rounding_excess(errors, allowed, got.numel())
    )


def softmax_case(rows: int = 100, columns: int = 16384) -> tuple[torch.Tensor, torch.Tensor]:
    """Oracle (float64) and reference (float32) of a wide softmax: every value is small."""
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(0))
    return torch.softmax(x.double(), -1), torch.softmax(x, -1)


def test_reference_passes_its_own_test() -> None:
    oracle, reference = softmax_case()
    assert verdict(reference, oracle, reference) is None


def test_another_summation_order_passes() -> None:
    x = torch.randn(64, 4096, generator=torch.Generator().manual_seed(1)).bfloat16()
    oracle = x.double() * torch.rsqrt(x.double().square().mean(-1, keepdim=True))
    reference = (x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True))).bfloat16()
    parts = x.float().square().view(64, 64, 64).sum(1).sum(1, keepdim=True) / 4096
    assert verdict((x.float() * torch.rsqrt(parts)).bfloat16(), oracle, reference) is None


def test_case_01_zeros_and_constants_fail_where_outputs_are_small() -> None:
    oracle, reference = softmax_case()
    assert torch.allclose(torch.zeros_like(reference), reference, atol=1e-2), "an absolute tolerance accepts zeros"
    assert verdict(torch.zeros_like(reference), oracle, reference)
    assert verdict(torch.full_like(reference, 1 / 16384), oracle, reference)


def test_case_06_infinities_match_infinities_and_nothing_else() -> None:
    reference = torch.tensor([[1.0, -math.inf, math.inf, math.nan]])
    oracle = reference.double()
    assert verdict(reference.clone(), oracle, reference) is None
    for at in (1, 2, 3):
        got = reference.clone()
        got[0, at] = 5.0
        assert verdict(got, oracle, reference)
    assert verdict(-reference, oracle, reference), "an infinity of the other sign is wrong"


def test_case_08_a_few_wild_rows_fail() -> None:
    oracle, reference = softmax_case()
    got = reference.clone()
    got[:5] = 1e6
    assert verdict(got, oracle, reference)


def test_case_09_one_tiny_element_or_one_row_in_a_hundred_fails() -> None:
    oracle, reference = softmax_case()
    got = torch.zeros_like(reference)
    got[0, 0] = 1e-9
    assert verdict(got, oracle, reference)
    got = reference.clone()
    got[42] += 50.0
    assert "row 42" in str(verdict(got, oracle, reference))
    got = reference.clone()
    got[17, 3] *= 1.001
    assert verdict(got, oracle, reference), "no share of elements is free"


@pytest.mark.parametrize(
    ("truth", "got", "wrong"),
    [
        (1e-9, 1e-9 + 2**-23, False),  # what float32 arithmetic loses beside elements of size 1
        (1e-9, 2**-15, True),  # more than that
        (1e-3, 1e-3 * (1 + 12 * 2**-7), True),  # no element so large is excused: 12 units in the last place
    ],
)
def test_an_element_near_zero_is_measured_by_what_its_row_can_resolve(truth: float, got: float, wrong: bool) -> None:
    oracle = torch.randn(1, 4096, generator=torch.Generator().manual_seed(2)).double()
    oracle[0, 7] = truth
    reference = oracle.bfloat16()
    off = reference.clone()
    off[0, 7] = got
    assert bool(verdict(off, oracle, reference)) == wrong


def test_case_11_nan_output_fails() -> None:
    oracle, reference = softmax_case()
    got = reference.clone()
    got[7, 7] = math.nan
    assert verdict(got, oracle, reference)
    errors = measure(got, oracle, reference)
    assert excess(errors, tolerance(Errors(), torch.float32, same_rounding=False), 4096), "also without same_places"
    assert excess(Errors(row=math.nan), tolerance(Errors(), torch.float32, same_rounding=False), 4)


def test_case_12_mask_comes_from_the_reference_and_zero_rows_are_absolute() -> None:
    oracle, reference = softmax_case(4)
    assert verdict(torch.full_like(reference, math.nan), oracle, reference)
    zero = torch.zeros(2, 8)
    assert verdict(zero.clone(), zero.double(), zero) is None
    assert verdict(zero + 1e-30, zero.double(), zero)


def test_case_14_a_missing_rounding_fails_although_it_is_closer_to_the_truth() -> None:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(64, 2048, generator=generator).bfloat16()
    weight = torch.randn(2048, generator=generator).bfloat16()
    scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True))
    oracle = x.double() * torch.rsqrt(x.double().square().mean(-1, keepdim=True)) * weight.double()
    reference = (x.float() * scale).bfloat16() * weight
    once = (x.float() * scale * weight.float()).bfloat16()
    assert torch.allclose(once.float(), reference.float(), rtol=1.6e-2, atol=1e-2), "the usual tolerance accepts it"
    assert "rounded otherwise" in str(verdict(once, oracle, reference))


def test_case_51_large_tensors_are_compared_in_parts() -> None:
    reference = torch.ones(3, 1 << 23)
    assert verdict(reference.clone(), reference.double(), reference) is None
    got = reference.clone()
    got[2, -1] = 2.0
    errors = measure(got, reference.double(), reference)
    assert errors.element_at == got.numel() - 1 and errors.row_at == 2


def test_case_30_precision_cut_fails() -> None:
    x = torch.randn(32, 1024, generator=torch.Generator().manual_seed(3))
    assert verdict(x.bfloat16().float(), x.double(), x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_spacing_is_the_distance_to_the_next_number(dtype: torch.dtype) -> None:
    values = torch.tensor([1.0, 1.5, 2.0, 3.9, 1e-3, 100.0], dtype=dtype)
    inf = torch.full_like(values, math.inf)
    wanted = (torch.nextafter(values, inf).double() - values.double()) if dtype != torch.bfloat16 else None
    if wanted is None:  # nextafter knows no bfloat16 on every build; its spacing is 2^16 float32 steps
        single = values.float()
        wanted = (torch.nextafter(single, inf.float()).double() - single.double()) * 2**16
    assert torch.equal(compare.spacing(values.double(), dtype), wanted)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 9), st.integers(0, 31), st.floats(0.05, 10))
def test_any_single_large_error_is_found(row: int, column: int, size: float) -> None:
    x = torch.randn(10, 32, generator=torch.Generator().manual_seed(4))
    got = x.clone()
    got[row, column] += size
    assert verdict(got, x.double(), x)


def test_sampling_accepts_fair_and_rejects_unfair_draws() -> None:
    probabilities = torch.tensor([[0.5, 0.25, 0.25, 0.0], [0.1, 0.2, 0.3, 0.4]], dtype=torch.float64)
    fair = torch.multinomial(probabilities, 4000, replacement=True, generator=torch.Generator().manual_seed(5)).T
    assert compare.improbable(fair, probabilities) is None
    assert "probability is 0" in str(compare.improbable(torch.full((1, 2), 3), probabilities))
    assert "chi-square" in str(compare.improbable(torch.zeros(4000, 2, dtype=torch.long), probabilities))
    assert "outside" in str(compare.improbable(torch.full((1, 2), 4), probabilities))
