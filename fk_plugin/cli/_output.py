"""What several commands ask of their arguments."""

from __future__ import annotations

import os
from pathlib import Path

from fk_plugin.errors import UsageError


def check_json(path: Path | None) -> None:
    """Refuse a --json file that could not be written, before minutes of work are spent on its content.

    Raises:
        UsageError: the path is a folder, its folder does not exist, or nothing may be written there.
    """
    if path is None:
        return
    folder = path.absolute().parent
    if path.is_dir():
        raise UsageError(f"--json needs a file name, and {path} is a folder.")
    if not folder.is_dir():
        raise UsageError(f"--json {path}: the folder {folder} does not exist; create it first.")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise UsageError(f"--json {path} may not be written by this user; name another file.")
