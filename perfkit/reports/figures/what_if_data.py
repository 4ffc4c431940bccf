"""Figure data of a what-if: the critical path on the time line, and what would be saved if a part were free."""

from __future__ import annotations

import msgspec


class PathOwnerFigure(msgspec.Struct, frozen=True, kw_only=True):
    """An owner of the critical path: its colour, its time per step, and the largest part of it."""

    name: str
    kind: str
    ns: int
    share: float
    mostly: str


class IfFreeFigure(msgspec.Struct, frozen=True, kw_only=True):
    """What a change alone would save per step, and the option that asks for it."""

    change: str
    option: str
    low_ns: int
    high_ns: int


class WhatIfFigure(msgspec.Struct, frozen=True, kw_only=True):
    """The critical path as columns, one entry for each stretch: times in ns since the first one, the owner's index.

    ``step_ns`` is the step as reports show it, ``recorded_ns`` a step in the recording, which is what is drawn.
    """

    verdict: str
    step_ns: int
    recorded_ns: int
    owners: tuple[PathOwnerFigure, ...]
    starts: tuple[int, ...]
    lengths: tuple[int, ...]
    owner: tuple[int, ...]
    name: tuple[str, ...]
    if_free: tuple[IfFreeFigure, ...]
    notes: tuple[str, ...] = ()
