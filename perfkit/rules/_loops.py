"""The loop that a line stands in, where the step traced by line knows it."""

from __future__ import annotations

import msgspec

from perfkit._location import Location
from perfkit.run.records import Lines


def loop_of(place: Location | None, lines: Lines | None) -> Location | None:
    """The statement of the loop around a line, else the line itself."""
    if place is None:
        return None
    traced = lines.traced if lines is not None else ()
    loops = (row.loop_line for row in traced if (row.file, row.line) == (place.file, place.line))
    loop_line = next((line for line in loops if line is not None), place.line)
    return msgspec.structs.replace(place.at, line=loop_line)
