"""Kernels of rope_kv_write."""
