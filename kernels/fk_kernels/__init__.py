"""Kernels: one sub-package per task, one module per kernel, found because it is here."""
