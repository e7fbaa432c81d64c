"""What several commands ask of their arguments."""

from __future__ import annotations

import os
from pathlib import Path

from fk_plugin.errors import UsageError


def check_json(path: Path | None) -> None:
    """Make the folder of a --json file, and refuse one that cannot be written, before minutes of work are spent on it.

    Raises:
        UsageError: the path is a folder, its folder cannot be made, or nothing may be written there.
    """
    if path is None:
        return
    if path.is_dir():
        raise UsageError(f"--json needs a file name, and {path} is a folder.")
    folder = path.absolute().parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--json {path}: its folder cannot be made ({error.strerror}); name another file.") from error
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise UsageError(f"--json {path} may not be written by this user; name another file.")
