"""A wrong kernel that an accuracy check must catch: every row comes out shifted by one column.

Right shape, dtype, magnitude, mean and variance, no NaN.
"""

import torch

from fk_plugin.kernel import Requires, kernel


@kernel("layer_norm", requires=Requires(device="any", dtypes=("float32", "float16", "bfloat16")), wrong_on_purpose=True)
def canary(x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float) -> torch.Tensor:
    """layer_norm of x with its columns rolled by one."""
    normed = torch.nn.functional.layer_norm(x.roll(1, -1).float(), x.shape[-1:], None, None, eps)
    normed = normed if weight is None else normed * weight
    return (normed if bias is None else normed + bias).to(x.dtype).contiguous()
