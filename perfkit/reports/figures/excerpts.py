"""Source lines around the place of a finding."""

from __future__ import annotations

from perfkit.reports.figures.data import Excerpt
from perfkit.reports.source_files import SourceFiles

#: Lines around the marked one: what it takes to recognize the place.
BEFORE, AFTER = 3, 3


class Sources(SourceFiles):
    """Source files, and parts of them."""

    def excerpt(self, file: str, line: int) -> Excerpt:
        """Some lines around ``line`` (1-based)."""
        lines, note = self.lines(file)
        if not 1 <= line <= len(lines):
            reason = note if not lines else f"the file has {len(lines)} lines now, not {line}"
            return Excerpt(file=file, line=line, note=reason)
        first = max(1, line - BEFORE)
        return Excerpt(file=file, line=line, first_line=first, lines=tuple(lines[first - 1 : line + AFTER]), note=note)
