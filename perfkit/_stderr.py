"""What perfkit says beside the user's program, on stderr: it never raises, for nobody may be reading.

A closed pipe (``python train.py 2>&1 | head``), a closed or missing stderr: then it is not said, and the
program's own output and exit code stay as they are.
"""

from __future__ import annotations

import sys
from contextlib import suppress


def print_message(text: str) -> None:
    """Print one message of perfkit on a line of its own."""
    write(f"perfkit: {text}\n")


def write(text: str) -> None:
    """Write text as it is; to sys.stderr as it is now, a progress bar may have it."""
    # Not print(): with no stderr at all (None) that would write to stdout.
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(text)
        sys.stderr.flush()
