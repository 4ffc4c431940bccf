"""Every exception of perfkit.

    PerfkitError
    ├── UsageError (ValueError)            the caller asked for something that cannot work
    ├── TraceError                         a trace file is missing, damaged beyond reading, or no trace
    ├── RunError                           a run folder is missing, empty, or of a newer schema
    ├── MissingDependency (ImportError)    an optional package is needed; the message has the pip command
    ├── SyncError                          a sync under detect_syncs(on_sync="raise")
    └── SyncBudgetExceeded (AssertionError)   more syncs than a budget or a test allows

    PerfkitWarning (UserWarning)           something was switched off or skipped, with the reason
    Interrupted (BaseException)            Ctrl-C ended the program of `perfkit run`

A message says what is required, what was given, and the fix.
"""

from __future__ import annotations


class PerfkitError(Exception):
    """Anything perfkit raises on purpose."""


class UsageError(PerfkitError, ValueError):
    """The caller asked for something that cannot work."""


class TraceError(PerfkitError):
    """A trace file is missing, damaged beyond reading, or not a trace."""


class RunError(PerfkitError):
    """A run folder is missing, empty, or written by a newer perfkit."""


class MissingDependency(PerfkitError, ImportError):
    """An optional package is needed; the message has the pip command."""


class SyncError(PerfkitError):
    """A host-device sync happened under ``detect_syncs(on_sync="raise")``."""


class SyncBudgetExceeded(PerfkitError, AssertionError):
    """More syncs than a budget, an assertion or a pytest marker allows."""


def check_whole_number(name: str, value: object, *, minimum: int) -> None:
    """Check an argument that is a number of things.

    Raises:
        UsageError: it is no whole number, or below ``minimum``.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise UsageError(f"{name} must be a whole number of at least {minimum}, got {value!r}")


class Interrupted(BaseException):
    """Ctrl-C ended the program, and its traceback is printed: what is left is to end as Python does."""


class PerfkitWarning(UserWarning):
    """Something was switched off or skipped; the message says why."""
