"""A wrong kernel that a distribution test must catch: it draws uniformly among the tokens that are to be kept.

Every token it returns is an allowed one, and where one token is left it is right; only the frequencies are wrong.
"""

import torch

from fk_plugin.kernel import Requires, kernel


@kernel(
    "top_k_top_p_sample",
    requires=Requires(device="any", dtypes=("float32", "float16", "bfloat16")),
    wrong_on_purpose=True,
)
def canary(
    logits: torch.Tensor, k: torch.Tensor, p: torch.Tensor, seed: torch.Tensor, renormalize: bool = True
) -> torch.Tensor:
    """The token at a seed-dependent place among the kept ones, most likely first."""
    width = logits.shape[1]
    ordered, index = logits.float().sort(dim=-1, descending=True)
    limit = torch.where((k <= 0) | (k > width), width, k)[:, None]
    of_top_k = torch.arange(width, device=logits.device)[None, :] < limit
    mass = torch.softmax(ordered.masked_fill(~of_top_k, -torch.inf) if renormalize else ordered, dim=-1)
    nucleus = ((mass.cumsum(-1) - mass) < p[:, None]) | (p >= 1)[:, None]
    kept = of_top_k & nucleus & (ordered > -torch.inf)
    count = kept.sum(dim=-1).clamp(min=1)
    return index.gather(1, (seed % count)[:, None]).squeeze(1)
