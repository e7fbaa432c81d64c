"""Kernels of rms_norm."""
