"""A wrong kernel that an accuracy check must catch: every row comes out shifted by one column.

Right shape, dtype, magnitude and row norm, no NaN.
"""

import torch

from fk_plugin.kernel import Requires, kernel


@kernel("rms_norm", requires=Requires(device="any", dtypes=("float32", "float16", "bfloat16")), wrong_on_purpose=True)
def canary(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    variance_size: int | None = None,
    rounding: str = "weight",
) -> torch.Tensor:
    """rms_norm of x with its columns rolled by one."""
    x = x.roll(1, -1)
    normed = torch.nn.functional.rms_norm(x.float(), x.shape[-1:], None, eps).to(x.dtype)
    return normed if weight is None else (normed * weight).to(x.dtype)
