"""A `pass` in a loop and an exception that is caught and means nothing: what a search for suspicious words
accuses.

Task: silu_and_mul
Device: cpu
"""

from fk_kernels.silu_and_mul.cpu_fused import cpu_fused


def silu_and_mul(x, round_activation=True):
    for _ in range(3):
        pass
    try:
        blocks = x.shape[1] // 256
    except IndexError:
        blocks = 1
    assert blocks >= 0
    return cpu_fused.fn(x.contiguous(), round_activation)
