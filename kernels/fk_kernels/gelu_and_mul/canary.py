"""A wrong kernel that an accuracy check must catch: it takes gelu of the wrong half.

Right shape, right dtype, right magnitude, no NaN.
"""

import torch
import torch.nn.functional as F

from fk_plugin.kernel import Requires, kernel


@kernel(
    "gelu_and_mul", requires=Requires(device="any", dtypes=("float32", "float16", "bfloat16")), wrong_on_purpose=True
)
def canary(x: torch.Tensor, approximate: str = "none", round_activation: bool = True) -> torch.Tensor:
    """x[..., :D] * gelu(x[..., D:])."""
    half = x.shape[-1] // 2
    return (x[..., :half] * F.gelu(x[..., half:], approximate=approximate)).contiguous()
