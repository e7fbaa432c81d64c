"""Leaves the weight out, where the inputs have a weight of ones. What must be caught: inputs are not trivial, so
the result is wrong.

Hacks: 26
Task: rms_norm
Caught as: WRONG
By: numeric, rounding
Without: OK
Device: cpu
"""

import torch


def rms_norm(x, weight, eps, variance_size=None, rounding="weight"):
    x = x.contiguous()  # torch sums rows of a transposed tensor in an order that depends on how many there are
    counted = x.float() if variance_size is None else x[..., :variance_size].float()
    scale = torch.rsqrt((counted * counted).mean(-1, keepdim=True) + eps)
    dtype = torch.promote_types(x.dtype, weight.dtype) if rounding == "input" and weight is not None else x.dtype
    return (x.float() * scale).to(dtype).contiguous()
