"""End-to-end A/B runs of a whole engine, with and without a kernel."""
