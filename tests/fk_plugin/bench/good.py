"""A right kernel of the toy task `scale`, by another operator than the reference's."""

import torch


def scale(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x * weight by column."""
    return torch.addcmul(x.new_zeros(()), x, weight).contiguous()
