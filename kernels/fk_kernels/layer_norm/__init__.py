"""Kernels of layer_norm."""
