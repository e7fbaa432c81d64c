"""Names under which a profiler shows our kernels: a trace of graph replays has nothing else to tell tasks by."""

import ast
from pathlib import Path

import pytest

import fk_kernels

FILES = sorted(Path(path) for path in fk_kernels.__path__)[0].glob("*/triton_*.py")


@pytest.mark.parametrize("file", list(FILES), ids=lambda f: f"{f.parent.name}-{f.stem}")
def test_what_is_launched_is_named_after_its_task(file: Path) -> None:
    tree = ast.parse(file.read_text())
    defined = {n.name for n in tree.body if isinstance(n, ast.FunctionDef) and n.decorator_list}
    subscripted = [
        n.func.value for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Subscript)
    ]
    launched = {n.id for n in subscripted if isinstance(n, ast.Name)} & defined
    assert launched, f"no launch found in {file}"
    task = file.parent.name
    assert all(name == f"fk_{task}" or name.startswith(f"fk_{task}_") for name in launched), launched
