"""A wrong kernel that a check must catch: key and value of each token change places."""

import torch

from fk_plugin.kernel import Requires, kernel


@kernel(
    "store_kv_cache",
    requires=Requires(device="any", dtypes=("float32", "float16", "bfloat16")),
    wrong_on_purpose=True,
)
def canary(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Writes key into the value cache and value into the key cache; padded rows write nowhere."""
    live = (slot_mapping >= 0).nonzero().squeeze(1)
    slots = slot_mapping[live].long()
    for new, cache in ((value, key_cache), (key, value_cache)):
        if cache.dim() == 3:
            cache[slots] = new[live]
        else:
            cache[slots // cache.shape[1], slots % cache.shape[1]] = new[live]
