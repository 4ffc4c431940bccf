"""Source lines around the place of a finding: only Python source, only a few lines, only if the file is unchanged."""

from __future__ import annotations

import os
import stat
from functools import cache
from pathlib import Path

from perfkit._text import clean
from perfkit.reports.figures.data import Excerpt

#: Lines around the marked one: what it takes to recognize the place.
BEFORE, AFTER = 3, 3
#: Far above the size of any source file.
_LARGEST = 2 * 2**20
#: A line of code that is longer is data.
_WIDEST = 200


class Sources:
    """The source files that findings name.

    Args:
        folder: The folder that the program ran in, for relative paths.
        recorded_ns: Unix time of the recording, None if unknown. A file that changed since is not shown.
        read: Whether any file is opened.
    """

    def __init__(self, folder: str | None, recorded_ns: int | None, *, read: bool = True) -> None:
        self._folder = folder or os.getcwd()
        self._recorded_ns = recorded_ns
        self._read = cache(self._read_file) if read else lambda file: ((), "source files are not read here")

    def excerpt(self, file: str, line: int) -> Excerpt:
        """Some lines around ``line`` (1-based)."""
        lines, note = self.lines(file)
        if not 1 <= line <= len(lines):
            reason = note if not lines else f"the file has {len(lines)} lines now, not {line}"
            return Excerpt(file=file, line=line, note=reason)
        first = max(1, line - BEFORE)
        return Excerpt(file=file, line=line, first_line=first, lines=tuple(lines[first - 1 : line + AFTER]), note=note)

    def lines(self, file: str) -> tuple[tuple[str, ...], str]:
        """All lines of a file, cut to a width, and a note: why there are none, or what is uncertain."""
        return self._read(file)

    def _read_file(self, file: str) -> tuple[tuple[str, ...], str]:
        # A trace may name any file of this machine: only Python source is opened.
        if not file.endswith(".py") or "\0" in file:
            return (), "no Python source file"
        path = Path(self._folder, file)
        try:
            about = path.stat()
            if not stat.S_ISREG(about.st_mode) or about.st_size > _LARGEST or path.resolve().suffix != ".py":
                return (), "no Python source file"
            if self._recorded_ns is not None and about.st_mtime_ns > self._recorded_ns:
                return (), "the file changed since the recording: its lines are not shown"
            text = path.read_bytes().decode()
        except (OSError, ValueError):
            return (), "the source is not on this machine, or cannot be read"
        if "\0" in text:
            return (), "no Python source file"
        note = "" if self._recorded_ns is not None else "as it is now: when this was recorded is not known"
        return tuple(clean(line.expandtabs(4), _WIDEST) for line in text.split("\n")), note
