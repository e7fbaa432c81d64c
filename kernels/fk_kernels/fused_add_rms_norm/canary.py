"""A wrong kernel that an accuracy check must catch: the norm sees x alone, the residual is added right.

Right shapes, dtypes and magnitudes, no NaN; only one of the two written arguments is wrong.
"""

import torch

from fk_plugin.kernel import Requires, kernel


@kernel(
    "fused_add_rms_norm",
    requires=Requires(device="any", dtypes=("float32", "float16", "bfloat16")),
    wrong_on_purpose=True,
)
def canary(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    variance_size: int | None = None,
    rounding: str = "weight",
) -> None:
    """residual += x; x = rms_norm(x)."""
    residual.add_(x)
    normed = torch.nn.functional.rms_norm(x.float(), x.shape[-1:], None, eps).to(x.dtype)
    x.copy_(normed if weight is None else normed * weight)
