"""Messages of perfkit on stderr, next to the output of the user's program. Printing one never raises.

Where stderr is missing, closed or a closed pipe (``python train.py 2>&1 | head``), the message is dropped; the
program's own output and exit code do not change.
"""

from __future__ import annotations

import sys
from contextlib import suppress

from perfkit._text import printable


def print_message(text: str) -> None:
    """Print one message of perfkit on a line of its own."""
    # The text may name files, and hold what a library or another process wrote.
    write("\n".join(map(printable, f"perfkit: {text}".split("\n"))) + "\n")


def write(text: str) -> None:
    """Write text unchanged, to the present sys.stderr: a progress bar may have replaced it."""
    # Not print(): with no stderr at all (None) that would write to stdout.
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(text)
        sys.stderr.flush()
