"""Messages of perfkit on stderr, next to the output of the user's program. Printing one never raises.

Where stderr is missing, closed or a closed pipe (``python train.py 2>&1 | head``), the message is dropped; the
program's own output and exit code do not change.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext, suppress

from perfkit._text import printable


def print_message(text: str) -> None:
    """Print one message of perfkit on a line of its own."""
    # The text may name files, and hold what a library or another process wrote.
    write("\n".join(map(printable, f"perfkit: {text}".split("\n"))) + "\n")


def print_once(text: str, printed: set[str]) -> None:
    """`print_message` where ``printed`` does not hold the text yet; afterwards it does."""
    if text not in printed:
        printed.add(text)
        print_message(text)


def write_beside_bars(text: str) -> None:
    """Write lines to stderr above the progress bars that tqdm draws there; rich redirects stderr by itself."""
    tqdm = getattr(sys.modules.get("tqdm.std"), "tqdm", None)
    try:
        with tqdm.external_write_mode(file=sys.stderr) if tqdm is not None else nullcontext():
            write(text)
    except Exception:  # noqa: BLE001 - another library's drawing, which an older tqdm does otherwise
        write(text)


def write(text: str) -> None:
    """Write text unchanged, to the present sys.stderr: a progress bar may have replaced it."""
    # Not print(): with no stderr at all (None) that would write to stdout.
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(text)
        sys.stderr.flush()
