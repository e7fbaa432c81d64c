"""Adapters: where a task meets an engine's call site. One sub-package per engine, each with its table of bindings."""
