"""fk-plugin: measure GPU kernels as production runs them, and run the winners inside vLLM and SGLang."""

__version__ = "0.1.0"
