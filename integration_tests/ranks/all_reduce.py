"""all_reduce by gathering everything and adding in the order of ranks: right, and no faster than the library."""

import torch
import torch.distributed as dist


def all_reduce(x, group=""):
    parts = [torch.empty(x.shape, dtype=x.dtype, device=x.device) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.contiguous())
    total = parts[0].float()
    for part in parts[1:]:
        total = total + part.float()
    return total.to(x.dtype)
