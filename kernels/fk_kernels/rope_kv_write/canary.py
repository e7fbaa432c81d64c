"""A wrong kernel that an accuracy check must catch: the cache receives the key as it was before its rotation.

query_out, key_out and the value cache are right; attention over the cache is not.
"""

import torch

from fk_plugin.kernel import Requires, kernel


@kernel(
    "rope_kv_write",
    requires=Requires(device="any", dtypes=("float32", "float16", "bfloat16")),
    wrong_on_purpose=True,
)
def canary(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_out: torch.Tensor,
    key_out: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    positions: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    head_size: int,
    is_neox: bool = True,
    round_products: bool = True,
) -> None:
    """rope_kv_write with key in place of the rotated key in the cache."""
    live = (slot_mapping >= 0).nonzero().squeeze(1)
    slots = slot_mapping[live].long()
    for new, cache in ((key, key_cache), (value, value_cache)):
        rows = new[live].view(len(live), -1, head_size)
        if cache.dim() == 3:
            cache[slots] = rows
        else:
            cache[slots // cache.shape[1], slots % cache.shape[1]] = rows
    cos, sin = cos_sin_cache[positions.long()].float().unsqueeze(1).chunk(2, dim=-1)
    for x, out in ((query, query_out), (key, key_out)):
        out.copy_(x)
        heads = out if out.dim() == 3 else out.unflatten(-1, (out.shape[-1] // head_size, head_size))
        heads = heads[..., : cos_sin_cache.shape[1]]
        first, second = heads.chunk(2, dim=-1) if is_neox else (heads[..., ::2], heads[..., 1::2])
        a, b = first.float(), second.float()
        first.copy_(a * cos - b * sin)
        second.copy_(b * cos + a * sin)
