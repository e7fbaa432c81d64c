"""A wrong kernel that an accuracy check must catch: this rank's share times the number of ranks, and no exchange.

Right shape, dtype and magnitude; right where every rank holds the same, as careless tests have it.
"""

import torch
import torch.distributed as dist

from fk_plugin.kernel import Requires, kernel


@kernel("all_reduce", requires=Requires(device="any", dtypes=("float32", "float16", "bfloat16")), wrong_on_purpose=True)
def canary(x: torch.Tensor, group: str = "") -> torch.Tensor:
    """x times the ranks of the default group."""
    return (x * dist.get_world_size()).contiguous()
