"""A wrong kernel that an accuracy check must catch: every probability goes to the next token.

Every row still sums to 1 and every value is within 1; an absolute tolerance on a flat row would let it pass, and so
would a check of sums.
"""

import torch

from fk_plugin.kernel import Requires, kernel


@kernel("softmax", requires=Requires(device="any", dtypes=("float32", "float16", "bfloat16")), wrong_on_purpose=True)
def canary(x: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """softmax of x with its columns rolled by one."""
    return torch.softmax(x.roll(1, -1), dim=-1, dtype=dtype)
