"""Kernels of grouped_gemm."""
