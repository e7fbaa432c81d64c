"""What several commands ask of their arguments."""

from __future__ import annotations

import os
import sys
import time
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


class Progress:
    """A line that rewrites itself on a terminal; elsewhere a new line when the step changes and every 20 seconds.

    `at_least` seconds lie between two lines of the second kind.
    """

    def __init__(self, at_least: float = 0.0) -> None:
        self._live = sys.stderr.isatty()
        self._at_least = at_least
        self._step, self._said = "", 0.0

    def __call__(self, text: str) -> None:
        """Show `text`; the part before the last comma is the step."""
        if self._live:
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
            return
        step, now = text.rsplit(",", 1)[0], time.monotonic()
        if now - self._said > (self._at_least if step != self._step else 20):
            print(text, file=sys.stderr, flush=True)
            self._step, self._said = step, now

    def done(self) -> None:
        """Clear the line."""
        if self._live:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
