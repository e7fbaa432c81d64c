"""Accuracy and throughput are pure functions of what the engines answered."""

import math

import pytest

from fk_plugin.e2e import accuracy, stats
from fk_plugin.e2e.accuracy import Difference, Judgement
from fk_plugin.e2e.protocol import Completion


def _answer(tokens: list[int], values: list[float], others: dict[int, float] | None = None) -> Completion:
    top = [{token: value, **(others or {})} for token, value in zip(tokens, values, strict=True)]
    return Completion(tokens=tokens, top=top)


def test_prefill_compares_token_by_token() -> None:
    a = [Completion(tokens=[], prompt=[-1.0, -2.0]), Completion(tokens=[], prompt=[-3.0])]
    b = [Completion(tokens=[], prompt=[-1.5, -2.0]), Completion(tokens=[], prompt=[-3.25])]
    assert accuracy.prefill(a, b) == Difference(mean=0.25, largest=0.5, count=3)


def test_prompts_of_other_lengths_do_not_compare() -> None:
    with pytest.raises(ValueError, match="do not compare"):
        accuracy.prefill([Completion(tokens=[], prompt=[-1.0])], [Completion(tokens=[], prompt=[])])


def test_decode_is_compared_up_to_and_at_the_first_change() -> None:
    a = [_answer([1, 2, 3, 4], [-0.5, -0.6, -0.7, -0.8])]
    b = [_answer([1, 2, 9, 4], [-0.5, -0.5, -0.6, -9.9], {3: -0.75})]
    found = accuracy.decode(a, b)
    assert (found.count, found.changed) == (3, 1)
    assert found.largest == pytest.approx(0.1)


def test_a_choice_that_the_other_side_does_not_list_differs_by_at_least_the_distance_to_the_list() -> None:
    a, b = [_answer([1], [-0.5])], [_answer([7], [-0.1], {8: -4.5})]
    assert accuracy.decode(a, b).largest == pytest.approx(4.0)


@pytest.mark.parametrize("bad", [math.nan, -math.inf])
def test_nan_and_infinity_never_pass(bad: float) -> None:
    floor = Difference(mean=1.0, largest=10.0, count=5)
    for a, b in (([-1.0], [bad]), ([bad], [-1.0])):
        found = accuracy.prefill([Completion(tokens=[], prompt=a)], [Completion(tokens=[], prompt=b)])
        assert not Judgement(what="prefill", difference=found, floor=floor).passed


def test_nothing_compared_never_passes() -> None:
    found = accuracy.prefill([Completion(tokens=[1])], [Completion(tokens=[1])])
    assert found.count == 0
    assert not Judgement(what="prefill", difference=found, floor=found).passed


def test_limits_follow_the_floor_and_never_reach_zero() -> None:
    floor = Difference(mean=0.1, largest=1.0, count=9)
    zero = Difference(mean=0.0, largest=0.0, count=9)
    inside = Difference(mean=0.24, largest=3.9, count=9)
    assert Judgement(what="x", difference=inside, floor=floor).passed
    assert not Judgement(what="x", difference=inside, floor=zero).passed
    assert not Judgement(what="x", difference=Difference(mean=0.26, largest=1.0, count=9), floor=floor).passed
    assert not Judgement(what="x", difference=Difference(mean=0.1, largest=4.1, count=9), floor=floor).passed
    assert Judgement(what="x", difference=Difference(mean=0.0015, largest=0.04, count=9), floor=zero).passed


def test_merge_weights_by_tokens_and_reread_takes_the_end_of_the_prompt() -> None:
    parts = [Difference(mean=1.0, largest=1.0, count=1, changed=1), Difference(mean=0.0, largest=0.5, count=3)]
    assert accuracy.merge(parts) == Difference(mean=0.25, largest=1.0, count=4, changed=1)
    generated = [_answer([5, 6], [-1.0, -2.0])]
    prompted = [Completion(tokens=[], prompt=[-9.0, -9.0, -1.0, -2.5])]
    assert accuracy.reread(generated, prompted) == Difference(mean=0.25, largest=0.5, count=2)
    assert accuracy.largest(parts[0], parts[1]) == Difference(mean=1.0, largest=1.0, count=1)


def test_change_rate_counts_each_request_up_to_its_first_change() -> None:
    assert accuracy.change_rate([[1, 2, 3], [4, 5, 6]], [[1, 2, 3], [4, 9, 9]]) == 1 / 5
    assert accuracy.change_rate([[1, 2]], [[1, 2]]) == 0.0
    assert accuracy.change_rate([[1, 2]], [[]]) == 1.0


def test_spread_is_the_standard_deviation_of_finite_values() -> None:
    assert accuracy.spread([Completion(tokens=[], prompt=[-1.0, -3.0, -math.inf])]) == 1.0
    assert accuracy.spread([Completion(tokens=[])]) == 0.0


def test_ratio_of_equal_sides_contains_one_and_a_real_gain_excludes_it() -> None:
    base = [[100.0, 101.0, 99.0], [100.5, 99.5, 100.0]]
    same = stats.ratio(base, [[100.0, 99.0, 101.0], [99.5, 100.5, 100.0]])
    assert same.low <= 1.0 <= same.high and same.high - same.low < 0.05
    faster = stats.ratio(base, [[x * 1.2 for x in start] for start in base])
    assert faster.value == pytest.approx(1.2) and faster.low > 1.1
    assert stats.median(base) == 100.0 and stats.span(base) == (99.0, 101.0)


def test_one_more_rounding_widens_a_limit_by_less_and_only_if_it_was_measured() -> None:
    floor = Difference(mean=0.001, largest=0.01, count=9)
    rounding = Difference(mean=0.1, largest=1.0, count=9)
    for mean, largest, passes in ((0.14, 2.4, True), (0.16, 1.0, False), (0.1, 2.6, False)):
        found = Difference(mean=mean, largest=largest, count=9)
        assert Judgement(what="x", difference=found, floor=floor, rounding=rounding).passed is passes
        assert not Judgement(what="x", difference=found, floor=floor).passed
    for broken in (Difference(mean=math.inf, largest=math.inf, count=9), Difference(mean=0.1, largest=1.0, count=0)):
        assert not Judgement(what="x", difference=rounding, floor=floor, rounding=broken).passed
