"""Kernels of all_reduce."""
