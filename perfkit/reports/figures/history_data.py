"""Figure data of a history of runs, a part of `perfkit.reports.figures.data`, with the same rules."""

from __future__ import annotations

import msgspec


class ChangeFigure(msgspec.Struct, frozen=True, kw_only=True):
    """A change before run number ``at``, with a short label for the chart and a sentence."""

    at: int
    slower: bool
    label: str
    sentence: str


class LimitFigure(msgspec.Struct, frozen=True, kw_only=True):
    """An objective on the median step, as a line of the chart."""

    label: str
    ns: int


class HeldFigure(msgspec.Struct, frozen=True, kw_only=True):
    """An objective, and whether the newest run meets it."""

    met: bool
    sentence: str


class WorkloadFigure(msgspec.Struct, frozen=True, kw_only=True):
    """The runs of one workload in columns, in order of start; None: no step was timed.

    ``level_ns`` is the level that each run belongs to, between changes the same.
    """

    name: str
    machine: str
    verdict: str
    note: str
    start: tuple[str, ...]
    commit: tuple[str, ...]
    folder: tuple[str, ...]
    median_ns: tuple[int | None, ...]
    p10_ns: tuple[int | None, ...]
    p90_ns: tuple[int | None, ...]
    level_ns: tuple[int | None, ...]
    changes: tuple[ChangeFigure, ...] = ()
    limits: tuple[LimitFigure, ...] = ()
    objectives: tuple[HeldFigure, ...] = ()
