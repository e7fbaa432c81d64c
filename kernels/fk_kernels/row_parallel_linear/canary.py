"""A wrong kernel that an accuracy check must catch: this rank's product times the number of ranks, and no exchange.

Right shape, dtype and magnitude; right where every rank holds the same, as careless tests have it.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F

from fk_plugin.kernel import Requires, kernel


@kernel(
    "row_parallel_linear",
    requires=Requires(device="any", dtypes=("float32", "float16", "bfloat16")),
    wrong_on_purpose=True,
)
def canary(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, group: str = "") -> torch.Tensor:
    """x @ weight.T times the ranks of the default group, plus bias."""
    product = F.linear(x, weight) * dist.get_world_size()
    return product if bias is None else product + bias
