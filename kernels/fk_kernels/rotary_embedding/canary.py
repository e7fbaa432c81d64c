"""A wrong kernel that an accuracy check must catch: query is rotated backwards, key is rotated right.

Right norms, no NaN. Rotating both backwards would not do: their products would keep much of their meaning.
"""

import torch

from fk_plugin.kernel import Requires, kernel


@kernel(
    "rotary_embedding",
    requires=Requires(device="any", dtypes=("float32", "float16", "bfloat16")),
    wrong_on_purpose=True,
)
def canary(
    query: torch.Tensor,
    key: torch.Tensor,
    positions: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    head_size: int,
    is_neox: bool = True,
    round_products: bool = True,
) -> None:
    """query *= exp(-i angle), key *= exp(i angle)."""
    rotary = cos_sin_cache.shape[1]
    cos, sin = cos_sin_cache[positions.long()].float().unsqueeze(1).chunk(2, dim=-1)
    for x, turn in ((query, -sin), (key, sin)):
        heads = (x if x.dim() == 3 else x.unflatten(-1, (x.shape[-1] // head_size, head_size)))[..., :rotary]
        first, second = heads.chunk(2, dim=-1) if is_neox else (heads[..., ::2], heads[..., 1::2])
        a, b = first.float(), second.float()
        first.copy_(a * cos - b * turn)
        second.copy_(b * cos + a * turn)
