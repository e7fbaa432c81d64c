"""Drawing the next token.

Randomness is an argument: one 64-bit seed per row, on the logits' device. One seed per row, and not a generator or a
noise tensor, because
    - a replayed CUDA graph sees new seeds, where a generator's state would be burned in;
    - requests with their own seeds sit beside others in a batch, and a row's token does not depend on its neighbours;
    - every algorithm in use fits: inverse distribution, Gumbel noise, rejection. Noise of the size of the logits would
      force the second one, and its memory traffic, upon everybody.
The same logits and seed give the same token from the same kernel. Different kernels may give different tokens for a
seed; over independent seeds each must follow the distribution, and that is what is judged.

Shape suffixes: T rows (sequences), V vocabulary.
"""

from collections.abc import Callable
from typing import Any

import torch

from fk_plugin.task import Baseline, Cost, Mirror, Overload, Task, Workload

# `vocab_size` of each model's published config.json; top-k and top-p of the models' generation_config.json or of common
# use: Llama-3.1 has top_p 0.9, Qwen3 top_k 20 and top_p 0.95.
_MODELS = {"SmolLM2-135M": (49152, 50, 0.9), "Llama-3.1-8B": (128256, 0, 0.9), "Qwen3-30B-A3B": (151936, 20, 0.95)}
_DECODE_TOKENS = (1, 8, 32, 128, 256)
_BITS = 48  # of a seed's hash that become the uniform number; exact in float64, and never 1 after rounding


def probabilities(
    logits: torch.Tensor, k: torch.Tensor, p: torch.Tensor, seed: torch.Tensor | None = None, renormalize: bool = True
) -> torch.Tensor:
    """[T, V] float64: the distribution that top_k_top_p_sample draws from."""
    logits_TV = logits.double()
    full_TV = torch.softmax(logits_TV, dim=-1)
    if not logits.shape[0]:
        return full_TV
    order_TV = logits_TV.argsort(dim=-1, descending=True, stable=True)
    sorted_TV = logits_TV.gather(1, order_TV)
    vocabulary = logits.shape[1]
    limit_T = torch.where((k <= 0) | (k > vocabulary), vocabulary, k).long()
    kept_TV = sorted_TV >= sorted_TV.gather(1, limit_T[:, None] - 1)
    mass_TV = full_TV.gather(1, order_TV)
    if renormalize:
        mass_TV = mass_TV * kept_TV
        mass_TV = mass_TV / mass_TV.sum(dim=-1, keepdim=True)
    above_TV = mass_TV.cumsum(dim=-1) - mass_TV
    nucleus_TV = (above_TV < p.double()[:, None]) | (p >= 1)[:, None]
    nucleus_TV[:, 0] = True
    mass_TV = mass_TV * (kept_TV & nucleus_TV)
    mass_TV = mass_TV / mass_TV.sum(dim=-1, keepdim=True)
    return torch.zeros_like(mass_TV).scatter_(1, order_TV, mass_TV)


def uniform(seed: torch.Tensor) -> torch.Tensor:
    """Float64 numbers in [0, 1), one for each int64 seed: the SplitMix64 finaliser, on wrapping integers."""
    z = seed * -7046029254386353131 + 1442695040888963407
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
        z = (z ^ _shift_right(z, shift)) * factor
    z = z ^ _shift_right(z, 31)
    return _shift_right(z, 64 - _BITS).double() / 2**_BITS


def _shift_right(z: torch.Tensor, bits: int) -> torch.Tensor:
    return (z >> bits) & ((1 << (64 - bits)) - 1)  # torch shifts the sign in


def top_k_top_p_sample(
    logits: torch.Tensor, k: torch.Tensor, p: torch.Tensor, seed: torch.Tensor, renormalize: bool = True
) -> torch.Tensor:
    """Draw one token per row from the k most likely and, of those, the fewest whose probabilities reach p.

    Args:
        logits: [T, V], floating point; minus infinity is never drawn, NaN is not allowed.
        k: [T], int32 or int64; 0 or less, or more than V, keeps all. Ties with the k-th are kept.
        p: [T], float32, at least 0; 1 or more keeps all, 0 the most likely token alone. A token is kept while the mass
            above it is below p. Of tokens that tie at the edge, any may be kept.
        seed: [T], int64, see the module.
        renormalize: p counts the mass of what top-k left, scaled to 1 (vLLM, FlashInfer's "top_k_first"); False: the
            mass of the whole vocabulary (SGLang, FlashInfer's "joint").

    Returns: [T], int64.
    """
    sums_TV = probabilities(logits, k, p, None, renormalize).cumsum(dim=-1)
    spot_T1 = uniform(seed)[:, None] * sums_TV[:, -1:]
    # The first sum above the spot belongs to a token of positive probability.
    return torch.searchsorted(sums_TV, spot_T1, right=True).squeeze(1)


def _fake(logits: torch.Tensor, *_: Any) -> torch.Tensor:
    return logits.new_empty((logits.shape[0],), dtype=torch.int64)


def _tokens(logits: torch.Tensor, *_: Any) -> int:
    return logits.shape[0]


def _redraw(args: tuple[Any, ...], number: int) -> tuple[Any, ...]:
    logits, k, p, seed, *rest = args
    generator = torch.Generator(seed.device).manual_seed(number)
    fresh = torch.randint(-(2**62), 2**62, seed.shape, generator=generator, device=seed.device)
    return logits, k, p, fresh, *rest


def _inputs(workload: Workload, device: str, seed: int) -> tuple[Any, ...]:
    """float32 logits without ties, a few candidates well above the background; k and p vary a little by row."""
    generator = torch.Generator(device).manual_seed(seed)
    rows, width, layout = workload.axes["tokens"], workload.axes["vocabulary"], workload.layout
    room = 2 * width if layout == "sliced" else width
    logits_TV = torch.randn((rows, room), generator=generator, device=device)[:, :width]
    spots = torch.randint(0, width, (rows, 24), generator=generator, device=device)
    logits_TV.scatter_(1, spots, 8 + 4 * torch.rand((rows, 24), generator=generator, device=device))
    if layout == "masked":
        logits_TV[:, ::3] = -torch.inf
    k_T = torch.full((rows,), workload.axes["top_k"], dtype=torch.int32, device=device)
    p_T = torch.full((rows,), workload.axes["top_p_permille"] / 1000, device=device)
    if workload.phase != "edge":  # requests of a batch ask for different filters
        k_T[::4] = torch.randint(2, 60, k_T[::4].shape, generator=generator, device=device, dtype=torch.int32)
        p_T[::3] = 0.5 + 0.5 * torch.rand(p_T[::3].shape, generator=generator, device=device)
    seeds_T = torch.randint(-(2**62), 2**62, (rows,), generator=generator, device=device)
    return logits_TV.to(getattr(torch, workload.dtype)), k_T, p_T, seeds_T, layout != "joint"


def _cost(workload: Workload) -> Cost:
    elements = workload.axes["tokens"] * workload.axes["vocabulary"]
    width = torch.finfo(getattr(torch, workload.dtype)).bits // 8
    # The logits read once; subtract, exp, compare and add per element.
    return Cost(bytes=elements * width, flops=4 * elements)


def _edge(name: str, tokens: int, vocabulary: int, k: int, p: int, layout: str = "contiguous") -> Workload:
    axes = {"tokens": tokens, "vocabulary": vocabulary, "top_k": k, "top_p_permille": p}
    return Workload(name=f"edge-{name}", axes=axes, dtype="float32", source="edge case", phase="edge", layout=layout)


def _vllm(device: str) -> Callable[..., Any]:
    from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p, random_sample

    def run(logits: Any, k: Any, p: Any, seed: Any, renormalize: bool = True) -> torch.Tensor:
        # The filter works in place on logits that vLLM's sampler owns; here they belong to the caller.
        kept = torch.where((k <= 0) | (k > logits.shape[1]), logits.shape[1], k).int()
        return random_sample(torch.softmax(apply_top_k_top_p(logits.float().clone(), kept, p), dim=-1), {})

    return run


def _flashinfer(device: str) -> Callable[..., Any]:
    from flashinfer.sampling import top_k_top_p_sampling_from_logits as draw

    def run(logits: Any, k: Any, p: Any, seed: Any, renormalize: bool = True) -> torch.Tensor:
        kept = torch.where((k <= 0) | (k > logits.shape[1]), logits.shape[1], k).int()
        order = "top_k_first" if renormalize else "joint"
        return draw(logits.float().contiguous(), kept, p, filter_apply_order=order, deterministic=True).long()

    return run


_SAMPLER = (
    "(self, logits: torch.Tensor, generators: dict[int, torch._C.Generator], k: torch.Tensor | None, "
    "p: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor | None]"
)

TOP_K_TOP_P_SAMPLE = Task(
    name="top_k_top_p_sample",
    summary="draw one token per row after top-k and top-p; judged by its distribution",
    overloads=(
        Overload(
            schema="top_k_top_p_sample(Tensor logits, Tensor k, Tensor p, Tensor seed, bool renormalize=True) "
            "-> Tensor",
            reference=top_k_top_p_sample,
            fake=_fake,
        ),
    ),
    workloads=tuple(
        Workload(
            name=f"{model.lower()}-decode-{tokens}",
            axes={"tokens": tokens, "vocabulary": size, "top_k": k, "top_p_permille": round(p * 1000)},
            dtype="float32",
            source=f"{model} sampler",
            phase="decode",
        )
        for model, (size, k, p) in _MODELS.items()
        for tokens in _DECODE_TOKENS
    ),
    edge_workloads=(
        _edge("no-rows", 0, 100, 5, 900),
        _edge("one-row", 1, 1000, 20, 900),
        _edge("one-token", 3, 1, 1, 900),
        _edge("odd-size", 7, 613, 11, 870),
        _edge("k-1-is-greedy", 5, 300, 1, 1000),
        _edge("p-0-is-greedy", 5, 300, 0, 0),
        _edge("no-filter", 3, 64, 0, 1000),
        _edge("k-beyond-vocabulary", 3, 64, 100, 900),
        _edge("joint", 5, 300, 12, 700, "joint"),
        _edge("masked", 5, 300, 12, 900, "masked"),
        _edge("sliced", 5, 300, 12, 900, "sliced"),
    ),
    make_inputs=_inputs,
    cost=_cost,
    tokens=_tokens,
    oracle=probabilities,
    compare="distribution",
    redraw=_redraw,
    insensitive={
        "k": "another filter often leaves a single draw as it was; the distribution test sees it",
        "p": "another filter often leaves a single draw as it was; the distribution test sees it",
    },
    mirrors=(
        *(
            Mirror(
                engine="vllm",
                target=f"vllm.v1.sample.ops.topk_topp_sampler:TopKTopPSampler.{method}",
                signature=_SAMPLER,
                arguments={"renormalize": True},
            )
            for method in ("forward_native", "forward_cuda", "forward_cpu")
        ),
        Mirror(
            engine="sglang",
            target="sglang.srt.layers.sampler:top_k_top_p_min_p_sampling_from_probs_torch",
            signature="(probs: torch.Tensor, top_ks: torch.Tensor, top_ps: torch.Tensor, min_ps: torch.Tensor, "
            "need_min_p_sampling: bool, sampling_seed: Optional[torch.Tensor], positions: torch.Tensor)",
            arguments={"renormalize": False},
        ),
    ),
    baselines=(
        Baseline(name="vllm.random_sample", engine="vllm", load=_vllm),
        Baseline(name="flashinfer.top_k_top_p_sampling", engine="flashinfer", load=_flashinfer, devices=("cuda",)),
    ),
)
