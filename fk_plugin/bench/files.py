"""Notices when the product's files change while a candidate runs.

They are left as they are: the change may be the user's own work in another window. The running sandbox has its code
in memory and is not affected; the next one would be.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

_PACKAGES = ("fk_plugin", "fk_tasks", "fk_kernels")


class Seal:
    """Remembers the source files of the product (and `extra` files) as they are now."""

    def __init__(self, extra: tuple[Path, ...] = ()) -> None:
        self._content = {path: path.read_bytes() for path in (*_sources(), *extra)}

    def broken(self) -> list[str]:
        """Names of files that changed or vanished since."""
        found = []
        for path, content in self._content.items():
            if not path.is_file() or path.read_bytes() != content:
                found.append(path.name)
        return found


def _sources() -> list[Path]:
    found: list[Path] = []
    for package in _PACKAGES:
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
            found += Path(folder).rglob("*.py")
    return found
