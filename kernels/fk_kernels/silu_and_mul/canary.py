"""A wrong kernel that an accuracy check must catch: it takes silu of the wrong half.

Right shape, right dtype, right magnitude, no NaN. A plain scale factor would not do: a norm behind it cancels it.
"""

import torch
import torch.nn.functional as F

from fk_plugin.kernel import Requires, kernel


@kernel(
    "silu_and_mul", requires=Requires(device="any", dtypes=("float32", "float16", "bfloat16")), wrong_on_purpose=True
)
def canary(x: torch.Tensor, round_activation: bool = True) -> torch.Tensor:
    """x[..., :D] * silu(x[..., D:])."""
    half = x.shape[-1] // 2
    return x[..., :half] * F.silu(x[..., half:])
