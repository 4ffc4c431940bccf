"""Figure data: what pages draw, as plain frozen values that are JSON as they stand.

One `FigureData` is drawn by the HTML page, the TensorBoard tab and whoever else runs ``perfkit.draw(root, data)``.
Texts are clean (no control or direction-changing characters) but not escaped: whoever draws sets them as text.
Times are integer ns; not measured = None.
"""

from __future__ import annotations

from typing import Literal

import msgspec

#: Version of figures.json. 1: the first. 2: the timeline's columns are packed. A reader takes its own version only:
#: what figures are made of is kept, and they can be made again.
SCHEMA = 3

#: What a column holds, which decides how it is written, aligned and sorted; "share" is 0 to 1.
Unit = Literal["text", "place", "ns", "bytes", "count", "share", "number", "flops"]


class Fact(msgspec.Struct, frozen=True):
    """One line about the recording: ``Fact("host", "gpu-7")``."""

    label: str
    value: str


class Part(msgspec.Struct, frozen=True):
    """One part of a bar; ``kind`` decides its colour: a phase, a kind of device work, or ``idle-...``."""

    name: str
    ns: int
    kind: str


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """A whole and its parts, which sum to ``total_ns`` but for rounding.

    ``scale_ns`` is what the full width stands for, so that two bars can be compared; None: the whole.
    """

    title: str
    total_ns: int
    parts: tuple[Part, ...]
    note: str = ""
    scale_ns: int | None = None


class Excerpt(msgspec.Struct, frozen=True, kw_only=True):
    """Lines of a source file around the marked one; ``lines`` is empty where ``note`` says why there are none."""

    file: str
    line: int
    first_line: int = 1
    lines: tuple[str, ...] = ()
    note: str = ""


class EvidenceFigure(msgspec.Struct, frozen=True, kw_only=True):
    """One number behind a finding; ``value`` is written out."""

    name: str
    value: str
    source: str


class FindingFigure(msgspec.Struct, frozen=True, kw_only=True):
    """One finding. ``place`` is ``file:line`` or a range; ``explains`` are messages of findings that it causes."""

    rule: str
    severity: str
    message: str
    advice: str
    confidence: str
    place: str = ""
    function: str = ""
    cost_ns: int | None = None
    saving: str = ""
    cost_share: float | None = None
    why_unquantified: str = ""
    evidence: tuple[EvidenceFigure, ...] = ()
    explains: tuple[str, ...] = ()
    excerpt: Excerpt | None = None


class WindowMark(msgspec.Struct, frozen=True, kw_only=True):
    """The steps [first_step, last_step] that were recorded into a trace; ``file`` is relative to the run folder."""

    index: int
    first_step: int
    last_step: int
    file: str | None
    problem: str | None = None
    reason: str | None = None


class StepSeries(msgspec.Struct, frozen=True, kw_only=True):
    """Steps over time, in columns of equal length: one row per step, or per few neighbours in a long run.

    ``wall_ns`` and ``phases_ns`` are means per step over a row; ``longest_ns`` is its slowest step, number
    ``longest_step``. ``state`` is "" for an undisturbed row, else "window", "extra" or "dry". The other columns are
    means (``memory_bytes``: the highest) of what was told in the row, None where nothing was.
    """

    first_step: tuple[int, ...]
    steps: tuple[int, ...]
    start_ns: tuple[int, ...]
    wall_ns: tuple[int, ...]
    longest_ns: tuple[int, ...]
    longest_step: tuple[int, ...]
    state: tuple[str, ...]
    phases_ns: dict[str, tuple[int | None, ...]]
    samples_per_s: tuple[float | None, ...] = ()
    tokens_per_s: tuple[float | None, ...] = ()
    memory_bytes: tuple[int | None, ...] = ()
    syncs: tuple[float | None, ...] = ()
    loss: tuple[float | None, ...] = ()
    windows: tuple[WindowMark, ...] = ()


class Items(msgspec.Struct, frozen=True, kw_only=True):
    """Intervals in order of start, in columns of ``columns.packed`` integers (base64 in JSON).

    ``start`` holds differences, the first one from the window's begin; ``name`` indices into the timeline's ``names``.
    In a merged list an item stands for ``count`` short events between its start and end: ``busy`` of its ``length`` is
    theirs, and ``name`` and ``longest`` are those of the longest of them. These are empty where each item is one event.
    ``during`` (idle only) is one more than the index of the host event that ran meanwhile, 0 for none.
    """

    start: bytes = b""
    length: bytes = b""
    name: bytes = b""
    count: bytes = b""
    busy: bytes = b""
    longest: bytes = b""
    during: bytes = b""


class Lane(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the timeline: the longest events one by one, the others merged where there are too many."""

    group: str
    label: str
    role: Literal["steps", "ranges", "idle", "stream", "host"]
    events: int
    items: Items
    merged: Items | None = None


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """A window on the clock of its trace; ``names[i]`` is drawn in the colour of ``kinds[i]``."""

    title: str
    start_ns: int
    span_ns: int
    events: int
    shown: int
    names: tuple[str, ...]
    kinds: tuple[str, ...]
    lanes: tuple[Lane, ...]
    notes: tuple[str, ...] = ()


class Column(msgspec.Struct, frozen=True):
    """A column of a table."""

    label: str
    unit: Unit = "text"


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """A table that can be sorted; a cell is a number in the column's unit, a text, or None."""

    id: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[int | float | str | None, ...], ...]
    note: str = ""


class LineOfFile(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a source file beside its numbers; all None for a line that is there for context only.

    ``whole``: the numbers are of lines of the function that are not told apart, and the line begins it.
    """

    line: int
    text: str | None = None
    function: str = ""
    whole: bool = False
    host_ns: int | None = None
    total_ns: int | None = None
    device_ns: int | None = None
    ops: int | None = None
    syncs: int | None = None
    allocated_bytes: int | None = None


class FileLines(msgspec.Struct, frozen=True, kw_only=True):
    """The lines of one file that took time, with their neighbours."""

    file: str
    note: str
    lines: tuple[LineOfFile, ...]


class LinesFigure(msgspec.Struct, frozen=True, kw_only=True):
    """The user's lines; ``source`` says how they were measured and what their times are of."""

    source: str
    files: tuple[FileLines, ...]


class RoofPoint(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of one op with the same shapes; ``intensity`` in FLOP per byte."""

    op: str
    shapes: str
    precision: str
    count: int
    device_ns: int
    intensity: float
    flops_per_s: float
    bound: str
    confidence: str


class RoofFigure(msgspec.Struct, frozen=True, kw_only=True):
    """Points of one device under its roofs: peaks by precision in FLOP/s, and bytes/s of its memory."""

    device: str
    peaks: dict[str, float]
    bytes_per_s: float | None
    points: tuple[RoofPoint, ...]
    time_ns: dict[str, int]
    note: str = ""


class MemoryFigure(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of one device over time, each level the highest in its bucket; ``held`` is a table of the peak."""

    device: str
    start_ns: int
    bucket_ns: int
    allocated_bytes: tuple[int, ...]
    reserved_bytes: tuple[int, ...]
    peak_bytes: int
    peak_at_ns: int | None
    peak: str
    held: Table
    note: str = ""


class Flame(msgspec.Struct, frozen=True, kw_only=True):
    """Host time by call path, in columns; a parent stands before its children, -1 for none.

    ``self_ns`` is time in none of the events inside; children that were left out (``hidden_ns``) are in it.
    """

    source: str
    total_ns: int
    steps: int
    name: tuple[int, ...]
    parent: tuple[int, ...]
    total: tuple[int, ...]
    count: tuple[int, ...]
    names: tuple[str, ...]
    kinds: tuple[str, ...]
    hidden_ns: int = 0


class FigureData(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a page draws of one diagnosis, or of a comparison of two; bounded whatever the size of its source.

    ``per`` is what ``wall_ns``, bars and lost times are of. ``traces`` are files relative to the run folder that lie
    there for download; empty for a single trace.
    """

    schema: int = SCHEMA
    about: Literal["diagnosis", "comparison"] = "diagnosis"
    source: str
    title: str
    verdict: str
    per: Literal["step", "recording"]
    wall_ns: int | None
    facts: tuple[Fact, ...] = ()
    bars: tuple[Bar, ...] = ()
    findings: tuple[FindingFigure, ...] = ()
    steps: StepSeries | None = None
    timeline: Timeline | None = None
    lines: LinesFigure | None = None
    tables: tuple[Table, ...] = ()
    roofs: tuple[RoofFigure, ...] = ()
    memory: tuple[MemoryFigure, ...] = ()
    flame: Flame | None = None
    traces: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    def to_json(self) -> bytes:
        """As it stands in figures.json: no blanks, UTF-8."""
        return msgspec.json.encode(self)
