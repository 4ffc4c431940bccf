"""Whether a recording holds what a verdict needs."""

from __future__ import annotations

from typing import ClassVar

import msgspec


class RecordingProblem(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a recording lacks: what, with its numbers, and what to record instead.

    ``fatal`` where no verdict is possible without it; else the verdict only covers less.
    """

    sentence: str
    advice: str
    fatal: bool


class Completeness(msgspec.Struct, frozen=True, kw_only=True):
    """What a recording lacks, that which makes a verdict impossible first.

    ``launches`` are the calls that start kernels, copies and graphs, of which ``launches_lost`` have no device event;
    ``unlinked_share`` is the share of device events whose launch is not in the trace (0 to 1), None without any.
    """

    AVAILABLE_FROM: ClassVar[str] = "a trace: a recorded window, or a trace file"

    problems: tuple[RecordingProblem, ...]
    launches: int
    launches_lost: int
    unlinked_share: float | None

    @property
    def fatal(self) -> tuple[RecordingProblem, ...]:
        """The problems that make a verdict impossible."""
        return tuple(problem for problem in self.problems if problem.fatal)

    @property
    def named(self) -> tuple[RecordingProblem, ...]:
        """Those of them that the verdict names: as many as a person reads; the others are notes."""
        return self.fatal[:3]
