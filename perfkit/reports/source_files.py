"""The source files that a diagnosis names: only Python source, only small files, only if the file is unchanged."""

from __future__ import annotations

import stat
from functools import cache
from pathlib import Path

from perfkit import _env
from perfkit._text import clean

#: Far above the size of any source file.
_LARGEST = 2 * 2**20
#: A line of code that is longer is data.
_WIDEST = 200


class SourceFiles:
    """The source files that findings name.

    Args:
        folder: The folder that the program ran in, for relative paths. Default: the current one.
        recorded_ns: Unix time of the recording, None if unknown. A file that changed since is not shown.
        read: Whether any file is opened.
    """

    def __init__(self, folder: str | None = None, recorded_ns: int | None = None, *, read: bool = True) -> None:
        self.folder = folder or str(_env.current_folder())
        self._recorded_ns = recorded_ns
        self._read = cache(self._read_file) if read else lambda file: ((), "source files are not read here")

    def lines(self, file: str) -> tuple[tuple[str, ...], str]:
        """All lines of a file, cut to a width, and a note: why there are none, or what is uncertain."""
        return self._read(file)

    def _read_file(self, file: str) -> tuple[tuple[str, ...], str]:
        # A trace may name any file of this machine: only Python source is opened.
        if not file.endswith(".py") or "\0" in file:
            return (), "no Python source file"
        path = Path(self.folder, file)
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
