"""Kernels of store_kv_cache."""
