"""top_k_top_p_sample: which tokens may be drawn, how often, and that seeds alone decide."""

import pytest
import torch

from fk_plugin import registry
from fk_tasks import sampling

TASK = registry.task("top_k_top_p_sample")
ROWS = 40_000


def chi_square(drawn: torch.Tensor, expected: torch.Tensor) -> float:
    """Chi-square over its degrees of freedom, outcomes under 5 expected draws taken together."""
    counts = torch.bincount(drawn, minlength=expected.numel()).double()
    assert not counts[expected == 0].any(), "a token of probability zero was drawn"
    wanted = expected * drawn.numel()
    common = wanted >= 5
    observed = torch.cat((counts[common], counts[~common].sum()[None]))
    wanted = torch.cat((wanted[common], wanted[~common].sum()[None]))
    live = wanted > 0
    if int(live.sum()) < 2:
        return 0.0
    return float(((observed - wanted)[live] ** 2 / wanted[live]).sum() / (live.sum() - 1))


def many(logits_V, k, p, renormalize=True, fn=sampling.top_k_top_p_sample):
    """ROWS draws of one row; expanded views, so the vocabulary is held once."""
    logits_TV = logits_V.expand(ROWS, -1)
    seeds_T = torch.randint(-(2**62), 2**62, (ROWS,), generator=torch.Generator().manual_seed(7))
    return fn(logits_TV, torch.full((ROWS,), k), torch.full((ROWS,), p), seeds_T, renormalize)


def target(logits_V, k, p, renormalize=True):
    return sampling.probabilities(logits_V[None], torch.tensor([k]), torch.tensor([p]), None, renormalize)[0]


@pytest.fixture
def logits_V():
    return torch.randn(60, generator=torch.Generator().manual_seed(3)) * 2


@pytest.mark.parametrize(
    ("k", "p", "renormalize"), [(0, 1.0, True), (10, 1.0, True), (0, 0.8, True), (10, 0.8, True), (10, 0.8, False)]
)
def test_reference_follows_the_distribution(logits_V, k, p, renormalize):
    # With 60 degrees of freedom or fewer, chi-square over them passes 2.2 less than once in 100,000 runs; from 4 on, 7.
    assert chi_square(many(logits_V, k, p, renormalize), target(logits_V, k, p, renormalize)) < 2.2


def test_canary_does_not(logits_V):
    canary = registry.kernel("top_k_top_p_sample", "canary")
    assert chi_square(many(logits_V, 10, 0.8, fn=canary.fn), target(logits_V, 10, 0.8)) > 20


def test_seeds_alone_decide_and_rows_are_independent(logits_V):
    drawn = many(logits_V, 10, 0.9)
    assert torch.equal(drawn, many(logits_V, 10, 0.9))
    seeds = torch.randint(-(2**62), 2**62, (ROWS,), generator=torch.Generator().manual_seed(7))[5:8]
    alone = sampling.top_k_top_p_sample(
        logits_V.expand(3, -1), torch.full((3,), 10), torch.full((3,), 0.9), seeds, True
    )
    assert torch.equal(alone, drawn[5:8])


def test_uniform_numbers_are_uniform_for_consecutive_seeds():
    u = sampling.uniform(torch.arange(100_000))
    assert float(u.min()) >= 0
    assert float(u.max()) < 1
    counts = torch.histc(u.float(), bins=100, min=0, max=1).double()
    assert float(((counts - 1000) ** 2 / 1000).sum() / 99) < 1.7


def test_renormalisation_changes_the_nucleus():
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    # Top-2 leaves 0.4 and 0.3. Scaled to 1, the first holds 0.57 and reaches p = 0.5 alone; unscaled, it does not.
    assert (target(logits, 2, 0.5, True) > 0).tolist() == [True, False, False, False]
    assert (target(logits, 2, 0.5, False) > 0).tolist() == [True, True, False, False]


def test_greedy_ties_and_masks():
    logits = torch.tensor([1.0, 3.0, 3.0, -torch.inf])
    assert (target(logits, 1, 1.0) > 0).tolist() == [False, True, True, False], "ties with the k-th are kept"
    assert int((target(logits, 0, 0.0) > 0).sum()) == 1
    assert float(target(logits, 0, 1.0)[3]) == 0


@pytest.mark.parametrize("p", [0.3, 0.9])
@pytest.mark.parametrize("k", [1, 5, 60])
def test_keeps_what_vllm_keeps(logits_V, k, p):
    sampler = pytest.importorskip("vllm.v1.sample.ops.topk_topp_sampler")
    theirs = sampler.apply_top_k_top_p_pytorch(logits_V[None].clone(), torch.tensor([k]), torch.tensor([p]))
    assert torch.equal(target(logits_V, k, p, True) > 0, theirs[0] > -torch.inf)


def test_draws_what_sglang_draws(logits_V):
    sampler = pytest.importorskip("sglang.srt.layers.sampler")
    torch.manual_seed(0)
    drawn = sampler.top_k_top_p_min_p_sampling_from_probs_torch(
        logits_V.softmax(-1).expand(ROWS, -1).contiguous(),
        torch.full((ROWS,), 10),
        torch.full((ROWS,), 0.8),
        torch.zeros(ROWS),
        False,
        None,
        torch.zeros(ROWS),
    )
    assert chi_square(drawn.long(), target(logits_V, 10, 0.8, False)) < 7
    assert chi_square(drawn.long(), target(logits_V, 12, 0.7, True).clamp(min=1e-9)) > 7
