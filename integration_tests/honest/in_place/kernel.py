"""Writes its arguments, as the schema declares.

Task: fused_add_rms_norm
Device: cpu
"""

from fk_kernels.fused_add_rms_norm.cpu_rows import cpu_rows
from fk_plugin.kernel import kernel


@kernel("fused_add_rms_norm", requires=cpu_rows.requires, guard=cpu_rows.guard, prepare=cpu_rows.prepare)
def fused_add_rms_norm(x, residual, weight, eps, variance_size=None, rounding="weight"):
    return cpu_rows.fn(x, residual, weight, eps, variance_size, rounding)
