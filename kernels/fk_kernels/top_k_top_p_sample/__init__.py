"""Kernels of top_k_top_p_sample."""
