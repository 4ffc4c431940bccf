"""Writing a file so that a reader sees the old one or the new one, never a part."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

#: How the name of an unfinished file begins; one that a killed process left is never renamed.
PART = ".part-"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Another name next to ``path``, with the same ending, to write to; renamed to ``path`` unless an error is raised.

    Copies of a run leave out names that begin with a dot.
    """
    part = path.with_name(f"{PART}{os.getpid()}-{path.name}")
    try:
        yield part
        os.replace(part, path)
    except BaseException:
        with suppress(OSError):  # the error that is being raised says more
            part.unlink()
        raise


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file, whole or not at all."""
    with replacing(path) as part:
        part.write_bytes(data)
