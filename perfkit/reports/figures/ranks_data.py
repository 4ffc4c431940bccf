"""Figure data of many ranks, a part of `perfkit.reports.figures.data`, with the same rules."""

from __future__ import annotations

import msgspec


class LatenessFigure(msgspec.Struct, frozen=True, kw_only=True):
    """How late each rank is in each step: rows of ranks, columns of steps, one after the other.

    ``cells`` are ``columns.packed`` integers, row by row: 0 where nothing is known, else one more than the lateness in
    multiples of ``unit_ns``. ``latest`` is the rank that is the latest in each cell, as a difference from the first of
    its row, in the same order; empty if each row is one rank. Of steps and ranks the first ones of each column and row
    are given, and the last of all.
    """

    rows: int
    columns: int
    ranks_per_row: int
    steps_per_column: int
    first_ranks: tuple[int, ...]
    last_rank: int
    first_steps: tuple[int, ...]
    last_step: int
    unit_ns: int
    cells: bytes
    latest: bytes = b""


class HostFigure(msgspec.Struct, frozen=True, kw_only=True):
    """The ranks of one host, means per step: ``longest_ns`` is the own time of ``longest_rank``, the others' means.

    ``given_ns`` is what ranks waited for those of this host; ``waiting_ns`` is None where it was not measured.
    """

    host: str
    ranks: int
    own_ns: int
    longest_ns: int
    longest_rank: int
    waiting_ns: int | None
    given_ns: int


class RanksFigure(msgspec.Struct, frozen=True, kw_only=True):
    """The ranks of a job: who is late when, and where.

    ``hosts`` are those that others wait for longest, of ``all_hosts``, empty with one; ``no_timeline`` is why there is
    none.
    """

    lateness: LatenessFigure | None = None
    hosts: tuple[HostFigure, ...] = ()
    all_hosts: int = 0
    no_timeline: str = ""
