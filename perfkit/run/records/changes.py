"""changes.json: what was applied to the program without an edit to it."""

from __future__ import annotations

import msgspec

from perfkit._location import CodeLine
from perfkit.run.records.version import SCHEMA


class AppliedChange(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one change: how often it changed something of the program's, and the lines that were running.

    ``change`` is what a user writes, ``workers=2``. With ``count`` 0 the change had no effect.
    """

    change: str
    count: int
    places: tuple[CodeLine, ...] = ()


class AppliedChanges(msgspec.Struct, frozen=True, kw_only=True):
    """changes.json, of each rank."""

    schema: int = SCHEMA
    changes: tuple[AppliedChange, ...] = ()
