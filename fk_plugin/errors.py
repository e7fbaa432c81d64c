"""The errors that a user may see. Each message says what was expected, what came, and what to do."""

# What importing code of other packages may raise: a module that moved, a library that is not there, a name defined
# twice. Such code is looked at, and left alone if it is not what was expected.
FOREIGN_ERRORS = (
    ImportError, AttributeError, NameError, SyntaxError, TypeError, ValueError, LookupError, AssertionError, OSError,
    RuntimeError,
)  # fmt: skip


class FkError(Exception):
    """Base of every error this package raises on purpose."""


class UsageError(FkError):
    """The request cannot be carried out as written: a wrong name, value, path or a missing engine (exit status 2)."""


class StrictError(FkError):
    """FK_PLUGIN=strict: a kernel that should be in force is not bound, was never called, or failed."""
