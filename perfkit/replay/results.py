"""What a what-if answers: the step now and then, the critical path, and what would be saved if a part were free."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from perfkit._format import ms, ms_range, percent, shown_location
from perfkit._html import html_table, html_text
from perfkit._location import Location
from perfkit._text import printable
from perfkit._versioned_json import json_text
from perfkit.ledger.ledger_text import TextTable

SCHEMA = 1

#: The name of a change with its argument, None where it takes none.
Change = tuple[str, Any]

#: What the time of a critical path belongs to.
PathOwner = Literal[
    "loader",
    "python",
    "ops",
    "launches",
    "copy calls",
    "syncs",
    "allocation",
    "first use",
    "optimizer",
    "other calls",
    "kernels",
    "copies",
    "memsets",
    "communication",
    "graphs",
    "between kernels",
    "unknown",
]


class PathRow(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the critical path: ``ns`` per step, ``share`` of it.

    ``name`` is the op, the kernels' class, or what the host did; ``at`` the user's function, where the trace has
    stacks.
    """

    owner: PathOwner
    name: str
    ns: int
    share: float
    at: Location | None = None


class PathStretch(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of the critical path in the trace's own time, in ns since its first event, for drawings."""

    start_ns: int
    end_ns: int
    owner: PathOwner
    name: str


class IfFree(msgspec.Struct, frozen=True, kw_only=True):
    """What a change alone would save, in ns per step; ``option`` is what asks for it on the command line."""

    change: str
    option: str
    saves_low_ns: int
    saves_high_ns: int


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """The step as it is and as it would be.

    ``step_ns`` is the step now, ``low_ns`` to ``high_ns`` the step with the ``changes``. ``ideal_ns`` is what it takes
    if nothing else gets in the way, ``expected_ns`` the middle between that and what usually does; the interval holds
    both and the error of the mean saving of the steps. Without changes all are the step now, and ``if_free`` lists what
    each change would save, largest first. ``path`` is the critical path now, ``new_path`` the one with the
    changes. ``bottleneck`` is what takes most of the latter. ``measured_ns`` is the step of the recording that the
    prediction was compared with; ``not_comparable`` says why it cannot be. ``notes`` say what the trace does not show.
    """

    schema: int = SCHEMA
    source: str
    per: Literal["step", "recording"]
    steps: int
    step_ns: int
    low_ns: int
    ideal_ns: int
    expected_ns: int
    high_ns: int
    on_device: bool
    changes: tuple[str, ...] = ()
    path: tuple[PathRow, ...] = ()
    new_path: tuple[PathRow, ...] = ()
    if_free: tuple[IfFree, ...] = ()
    stretches: tuple[PathStretch, ...] = ()
    measured_ns: int | None = None
    not_comparable: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def bottleneck(self) -> str:
        """What takes most of the step with the changes, with its share: ``kernels (62%)``."""
        owners = owner_shares(self.new_path)
        name = max(owners, key=lambda name: owners[name], default=None)
        return f"{name} ({percent(owners[name], 1)})" if name is not None else "not known"

    def to_json(self) -> str:
        """The answer as indented JSON."""
        return json_text(self)

    def __repr__(self) -> str:
        return printable(f"<what-if of {self.source}: {' '.join(sentences(self))}>")

    def _repr_html_(self) -> str:
        """For notebooks: the sentences and tables; no script, all escaped."""
        parts = [f"<p><b>{html_text(' '.join(sentences(self)))}</b></p>"]
        parts += [html_table(table.head, table.rows) for table in tables(self)]
        return "".join((*parts, *(f"<p><i>Note: {html_text(note)}</i></p>" for note in self.notes)))


def owner_shares(path: tuple[PathRow, ...]) -> dict[PathOwner, float]:
    """The share of each owner of a critical path, largest first."""
    found: dict[PathOwner, float] = {}
    for row in path:
        found[row.owner] = found.get(row.owner, 0.0) + row.share
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def sentences(answer: WhatIf) -> list[str]:
    """The answer in sentences."""
    takes = "A step takes" if answer.per == "step" else "The recording lasts"
    if not answer.changes:
        first = f"{takes} {ms(answer.step_ns)}; its critical path is mostly {answer.bottleneck}."
        best = answer.if_free[0] if answer.if_free else None
        if best is None or best.saves_high_ns <= 0:
            return [first]
        saves = ms_range(best.saves_low_ns, best.saves_high_ns)
        return [first, f"The most would be saved with {best.option}: {saves}."]
    low, high, now = answer.low_ns, answer.high_ns, answer.step_ns
    saved = f"saves {ms_range(max(0, now - high), now - low)}, {percent(max(0, now - answer.expected_ns), now)}"
    if low > now:
        saved = f"{percent(answer.expected_ns - now, now)} longer"
    found = [
        f"{takes} {ms(now)} now and {ms_range(low, high)} {', '.join(answer.changes)} ({saved}).",
        f"The next bottleneck is {answer.bottleneck}.",
    ]
    if answer.not_comparable is not None:
        found.append(f"Not comparable: {answer.not_comparable}.")
    elif answer.measured_ns is not None:
        off = answer.expected_ns / answer.measured_ns - 1
        found.append(
            f"Measured: {ms(answer.measured_ns)}; the prediction of {ms(answer.expected_ns)} is {100 * off:+.1f}% off."
        )
    return found


def tables(answer: WhatIf) -> list[TextTable]:
    """The critical path by owner, now and with the changes; without changes the path and what would be saved."""
    if answer.changes:
        return [_path_table(answer, "now", answer.path), _path_table(answer, "then", answer.new_path)]
    rows = [
        (one.option, ms_range(one.saves_low_ns, one.saves_high_ns), percent(one.saves_high_ns, answer.step_ns))
        for one in answer.if_free
    ]
    path = _path_table(answer, "", answer.path)
    return [path, TextTable(("if this were free", "saves", "at most"), rows, 1)][: 1 + bool(rows)]


def _path_table(answer: WhatIf, when: str, path: tuple[PathRow, ...]) -> TextTable:
    """The owners of a path, each with the largest of its rows."""
    largest = {row.owner: row for row in reversed(path)}
    total = sum(row.ns for row in path)
    rows = [
        (
            owner,
            largest[owner].name if largest[owner].name != owner else "-",
            shown_location(at) if (at := largest[owner].at) is not None else "-",
            ms(share * total),
            percent(share, 1),
        )
        for owner, share in owner_shares(path).items()
    ]
    title = f"critical path {when}".rstrip()
    return TextTable((title, "mostly", "place", "per step" if answer.per == "step" else "time", "share"), rows, 3)
