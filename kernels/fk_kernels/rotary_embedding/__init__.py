"""Kernels of rotary_embedding."""
