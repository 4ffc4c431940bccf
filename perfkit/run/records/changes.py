"""changes.json: what was applied to the program without an edit to it."""

from __future__ import annotations

import msgspec

from perfkit._location import CodeLine
from perfkit.run.records.version import SCHEMA


class ChangedLine(CodeLine, frozen=True, kw_only=True):
    """A line of the user's that was running when a change took effect.

    ``via`` is the library's ``file:line`` inside it that did the work, None where there is none. ``end`` is where the
    running call ends: line and column in bytes of UTF-8, as `ast` counts them; None on Python 3.10.
    """

    via: str | None = None
    end: tuple[int, int] | None = None


class AppliedChange(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one change: how often it changed something of the program's, and the lines that were running.

    ``change`` is what a user writes, ``workers=2``. With ``count`` 0 the change had no effect.
    """

    change: str
    count: int
    places: tuple[ChangedLine, ...] = ()


class AppliedChanges(msgspec.Struct, frozen=True, kw_only=True):
    """changes.json, of each rank."""

    schema: int = SCHEMA
    changes: tuple[AppliedChange, ...] = ()
