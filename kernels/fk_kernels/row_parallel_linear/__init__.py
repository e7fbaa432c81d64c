"""Kernels of row_parallel_linear."""
