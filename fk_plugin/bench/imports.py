"""Which modules of the engines a candidate's file imports, found without running it."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

_ENGINES = ("vllm", "sglang")


def of_engines(spec: str) -> list[str]:
    """The names, those that exist only; empty for a registered kernel and for a file that cannot be parsed."""
    file = Path(spec.partition(":")[0]).expanduser()
    if file.suffix != ".py" or not file.is_file():
        return []
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return []  # loading it says what is wrong with it
    named: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            named += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            named += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return [name for name in dict.fromkeys(named) if name.split(".")[0] in _ENGINES and _exists(name)]


def _exists(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # a name inside a module, or a package that is not installed
        return False
