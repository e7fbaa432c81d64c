"""Copies in four ways, to see what the timer charges for."""

import time

import torch

from fk_plugin.kernel import Requires, kernel

_EVERY = Requires(device="cuda", dtypes=("float32",))
_STREAMS: list = []


def copy(x):
    return torch.empty_like(x).copy_(x)


@kernel("copy", requires=_EVERY, prepare=lambda: time.sleep(2.0))
def slow_prepare(x):
    return torch.empty_like(x).copy_(x)


def side_stream(x):
    """The same copy on another stream, joined."""
    if not _STREAMS:
        _STREAMS.append(torch.cuda.Stream())
    out = torch.empty_like(x)
    side, here = _STREAMS[0], torch.cuda.current_stream()
    side.wait_stream(here)
    with torch.cuda.stream(side):
        out.copy_(x)
    here.wait_stream(side)
    return out


def unjoined(x):
    """The same copy on another stream, not joined: charged all the same by a clock that waits for the device."""
    if not _STREAMS:
        _STREAMS.append(torch.cuda.Stream())
    out = torch.empty_like(x)
    if not torch.cuda.is_current_stream_capturing():
        _STREAMS[0].wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(_STREAMS[0]):
        out.copy_(x)
    return out
