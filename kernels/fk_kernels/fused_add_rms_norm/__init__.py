"""Kernels of fused_add_rms_norm."""
