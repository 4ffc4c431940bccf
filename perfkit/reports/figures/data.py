"""Figure data: what pages draw, as frozen Structs that encode to JSON.

The HTML page and the TensorBoard tab draw it with ``perfkit.draw(root, data)``. Texts contain no control or
direction-changing characters, but are not escaped: they must be set as text. Times are integer ns; None: not measured.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from perfkit.measures.results.kernels import RooflinePoint
from perfkit.reports.figures.history_data import WorkloadFigure
from perfkit.reports.figures.ranks_data import RanksFigure
from perfkit.reports.figures.what_if_data import WhatIfFigure
from perfkit.reports.tables._table import Table
from perfkit.run.records import SweepPoint, Window

#: Version of figures.json. 2: packed columns of the timeline. 3: costs and savings, rules that were not asked. Other
#: versions are not read: the figures can be made again. page.js draws the same version.
SCHEMA = 3

#: What a lane of a timeline shows.
Role = Literal["steps", "ranges", "idle", "stream", "host"]


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
    """A time and its parts, which sum to ``total_ns`` but for rounding.

    ``scale_ns`` is the time of the full width, by which two bars can be compared; None: the sum of the parts.
    """

    title: str
    total_ns: int
    parts: tuple[Part, ...]
    note: str = ""
    scale_ns: int | None = None


class Excerpt(msgspec.Struct, frozen=True, kw_only=True):
    """Lines of a source file around the marked one; without lines, ``note`` is the reason."""

    file: str
    line: int
    first_line: int = 1
    lines: tuple[str, ...] = ()
    note: str = ""


class EvidenceFigure(msgspec.Struct, frozen=True, kw_only=True):
    """One number behind a finding; ``value`` is text with its unit."""

    name: str
    value: str
    source: str


class FindingFigure(msgspec.Struct, frozen=True, kw_only=True):
    """One finding.

    ``place`` is ``file:line`` or a range, ``change`` the line to edit where it is another one, each with its excerpt.
    ``diff`` is the edit where it is known, at ``diff_place``; ``sure`` says in words how sure the finding is;
    ``explains`` are messages of findings that it causes.
    """

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
    change: str = ""
    change_excerpt: Excerpt | None = None
    sure: str = ""
    diff: tuple[str, ...] = ()
    diff_place: str = ""


class StepSeries(msgspec.Struct, frozen=True, kw_only=True):
    """Steps over time, in columns of equal length: one row per step, or per few neighbours in a long run.

    ``wall_ns`` and ``phases_ns`` are means per step over a row; ``longest_ns`` is its slowest step, number
    ``longest_step``. ``state`` is "" for an undisturbed row, else "window", "extra" or "dry". The other columns are
    means (``memory_bytes``: the maximum) of what was recorded in the row, or None. Files of windows
    are relative to the run folder.
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
    windows: tuple[Window, ...] = ()


class Items(msgspec.Struct, frozen=True, kw_only=True):
    """Intervals in order of start, in columns of ``columns.packed`` integers (base64 in JSON).

    ``start`` holds differences, the first one from the start of the window; ``name`` indices into the timeline's
    ``names``.
    An item of a merged list represents ``count`` short events, which take ``busy`` of its ``length``; ``name`` and
    ``longest`` are those of the longest. These columns are empty if each item is one event.
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
    """One row of the timeline: the longest events one by one, the others merged if there are too many."""

    group: str
    label: str
    role: Role
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


class OwnerFigure(msgspec.Struct, frozen=True, kw_only=True):
    """The time of one owner in the ledger, in its four parts; ``kind`` decides its colour."""

    name: str
    kind: str
    claimed_ns: int
    at_limit_ns: int
    overhead_ns: int
    unexplained_ns: int


class LedgerFigure(msgspec.Struct, frozen=True, kw_only=True):
    """Where the step goes: the owners, whose parts sum to ``wall_ns``, and a table of the longest rows.

    ``excerpt_of_row`` is for each row of the table the number of its line's excerpt, -1 for none.
    """

    summary: str
    wall_ns: int
    owners: tuple[OwnerFigure, ...]
    rows: Table
    excerpts: tuple[Excerpt, ...] = ()
    excerpt_of_row: tuple[int, ...] = ()


class LineOfFile(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a source file with its numbers; all None for a line of context.

    ``is_remainder``: the numbers are of all lines of the function that were not measured alone; ``line`` is its first.
    """

    line: int
    text: str | None = None
    function: str = ""
    is_remainder: bool = False
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
    """The user's lines; ``source`` is how they were measured, and per what."""

    source: str
    files: tuple[FileLines, ...]


class RoofFigure(msgspec.Struct, frozen=True, kw_only=True):
    """Points of one device under its roofs: peaks by precision in FLOP/s, and bytes/s of its memory."""

    device: str
    peaks: dict[str, float]
    bytes_per_s: float | None
    points: tuple[RooflinePoint, ...]
    time_ns: dict[str, int]
    note: str = ""


class MemoryFigure(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of one device over time, each level the maximum of its bucket; ``held`` is a table of the peak."""

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
    """Host time by call path, in columns; a parent comes before its children, -1 for none.

    ``unit`` is what was counted: samples, whose time is that of one step, or calls in ``steps`` steps of a trace.
    ``notes`` say how true the proportions are. ``hidden_ns`` is time of children that were left out.
    """

    source: str
    total_ns: int
    steps: int
    unit: Literal["samples", "calls"] = "calls"
    notes: tuple[str, ...] = ()
    name: tuple[int, ...]
    parent: tuple[int, ...]
    total: tuple[int, ...]
    count: tuple[int, ...]
    names: tuple[str, ...]
    kinds: tuple[str, ...]
    hidden_ns: int = 0


class HeldPart(msgspec.Struct, frozen=True):
    """One part of what is held at a peak; ``kind`` decides its colour."""

    name: str
    bytes: int
    kind: str


class PeakFlame(msgspec.Struct, frozen=True, kw_only=True):
    """Memory held at a peak by call path, in the columns of `Flame`; ``total`` is in bytes, ``count`` allocations."""

    total_bytes: int
    name: tuple[int, ...]
    parent: tuple[int, ...]
    total: tuple[int, ...]
    count: tuple[int, ...]
    names: tuple[str, ...]
    kinds: tuple[str, ...]


class PeakFigure(msgspec.Struct, frozen=True, kw_only=True):
    """What one device holds at the peak of a step: ``parts`` sum to it; ``tables`` are by module, phase, line and op,
    and of what checkpointing would free.
    """

    device: str
    summary: str
    parts: tuple[HeldPart, ...]
    flame: PeakFlame
    tables: tuple[Table, ...]


class TriedFigure(msgspec.Struct, frozen=True, kw_only=True):
    """One change that was tried, or several together.

    ``saving``, its interval ``ci`` and what was ``predicted`` are shares of the step; the words of ``outcome`` and
    ``loss`` are in `perfkit.run.records.trial`.
    """

    name: str
    outcome: str
    saving: float | None = None
    ci: tuple[float, float] | None = None
    predicted: tuple[float, float] | None = None
    before_ns: float | None = None
    after_ns: float | None = None
    loss: str = ""
    notes: tuple[str, ...] = ()


class TrialFigure(msgspec.Struct, frozen=True, kw_only=True):
    """What `perfkit try` measured; ``floor`` is the share by which two unchanged runs differ, ``patch`` has lines."""

    program: str
    verdict: str
    floor: float | None
    seconds: float
    changes: tuple[TriedFigure, ...]
    patch: tuple[str, ...] = ()
    unpatched: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class SweepFigure(msgspec.Struct, frozen=True, kw_only=True):
    """Throughput and memory by batch size, or by the number of workers."""

    swept: str
    verdict: str
    unit: str
    own: int | None
    recommended: int | None
    points: tuple[SweepPoint, ...]
    memory: str = ""
    notes: tuple[str, ...] = ()


class FigureData(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a page draws of a diagnosis, a comparison, the ranks of a job, or a history; bounded in size.

    ``wall_ns``, bars and costs are ``per`` step or of the recording. ``traces`` are the files of a run folder that can
    be downloaded. ``not_asked`` are the rules that were not asked, with what they need.
    """

    schema: int = SCHEMA
    about: Literal["diagnosis", "comparison", "ranks", "history"] = "diagnosis"
    source: str
    title: str
    verdict: str
    per: Literal["step", "recording"]
    wall_ns: int | None
    facts: tuple[Fact, ...] = ()
    bars: tuple[Bar, ...] = ()
    next_step: str = ""
    findings: tuple[FindingFigure, ...] = ()
    ledger: LedgerFigure | None = None
    trial: TrialFigure | None = None
    sweep: SweepFigure | None = None
    ranks: RanksFigure | None = None
    history: tuple[WorkloadFigure, ...] = ()
    steps: StepSeries | None = None
    timeline: Timeline | None = None
    what_if: WhatIfFigure | None = None
    lines: LinesFigure | None = None
    tables: tuple[Table, ...] = ()
    roofs: tuple[RoofFigure, ...] = ()
    memory: tuple[MemoryFigure, ...] = ()
    peaks: tuple[PeakFigure, ...] = ()
    flame: Flame | None = None
    traces: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    not_asked: Table | None = None

    def to_json(self) -> bytes:
        """The bytes of figures.json: UTF-8 without blanks."""
        return msgspec.json.encode(self)
