"""A wrong kernel that an accuracy check must catch: every expert's rows are multiplied by its neighbour's weight.

Right shape, dtype and magnitude; rows that belong to nobody are zero as they should be.
"""

import torch
import torch.nn.functional as F

from fk_plugin.kernel import Requires, kernel


@kernel(
    "grouped_gemm",
    requires=Requires(device="any", dtypes=("float32", "float16", "bfloat16")),
    wrong_on_purpose=True,
)
def canary(x: torch.Tensor, weight: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """grouped_gemm with weight[e - 1] in place of weight[e]."""
    out = x.new_zeros((x.shape[0], weight.shape[1]))
    start = 0
    for expert, end in enumerate(offsets.tolist()):
        out[start:end] = F.linear(x[start:end], weight[expert - 1])
        start = end
    return out
