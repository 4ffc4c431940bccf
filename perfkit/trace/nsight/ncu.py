"""Reports of Nsight Compute: its CSV exports, and its own format through an installed ncu.

``ncu --csv`` prints three tables. ``--page raw`` has one row per launch, a column per metric, and the units as a second
header row. ``--page details``, the default, has one row per launch and metric, named by labels that changed over the
years. ``--print-summary per-kernel`` has means over launches. Before and between them stands what the program printed
and what ncu says (``==PROF==``). Numbers are written as the locale of that machine writes them.
"""

from __future__ import annotations

import codecs
import csv
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from perfkit.errors import TraceError
from perfkit.trace.file_text import FileText, Progress
from perfkit.trace.nsight._ncu_metrics import (
    decimal_comma,
    dimensions,
    factor,
    metric_of,
    number,
    sized,
    stall_of_rule,
    whole,
)
from perfkit.trace.nsight.ncu_export import NCU_OWN, export_report

#: How far into a file its kind is looked for: what a program prints before the table is mostly less.
_START = 256 << 10
#: A row of the raw page has 1,000 to 3,000 columns: 300 kB with long names.
_LONGEST_LINE = 4 << 20
#: Values that are kept, and what a launch weighs beside its values: about 300 MB at the most. A report with everything
#: in it has 80 of the values looked at per launch; ncu itself takes a second or more for each launch.
_MOST_VALUES = 1_000_000
_LAUNCH_WEIGHT = 10
#: A name is kept up to this length: longer ones are template arguments.
_LONGEST_NAME = 2_000
#: A number has fewer characters, with its unit's prefix and separators.
_LONGEST_NUMBER = 64
#: No metric of a kernel comes near this; whole numbers from here on are none in JSON.
_MOST = 1e18
#: A count of launches beyond this is none.
_MOST_COUNT = 1e12
#: Of ncu's own errors, and of metrics that are no numbers, so many are told.
_MOST_TOLD = 3


#: What ncu writes where it has no value.
_NOT_MEASURED = ("", "n/a", "nan", "-nan", "inf", "-inf", "-")


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """One launch of a kernel, or the mean of ``count`` launches; ``metrics`` by ncu's names.

    Values are in bytes, seconds, cycles and percent, and those per second per second. None where the report does not
    tell.
    """

    id: int | None
    process: str
    kernel: str
    device: int | None
    stream: int | None
    grid: tuple[int, int, int] | None
    block: tuple[int, int, int] | None
    compute_capability: str | None
    metrics: dict[str, float]
    count: int = 1


class NcuReport(msgspec.Struct, frozen=True, kw_only=True):
    """Launches in the order of the file, and what of it could not be read, in sentences."""

    path: Path
    launches: tuple[Launch, ...]
    lost: tuple[str, ...]


def is_ncu(path: Path) -> bool:
    """Whether a file is a report of Nsight Compute, by what stands in it; a file that cannot be read is none."""
    if path.suffix in NCU_OWN:
        return True
    try:
        start = b""
        for block in FileText(path, block=_START):
            start += block
            if len(start) >= _START:
                break
    except (OSError, ValueError, TraceError):
        return False
    text = _decoder(start).decode(start[:_START])
    if text.lstrip()[:1] in ("{", "["):
        return False  # JSON: a Kineto trace
    # Other tables are taken too, to be told what they are not.
    if path.name.lower().endswith((".csv", ".csv.gz")):
        return True
    return "\0" not in text and ("Kernel Name" in text or "==PROF==" in text)


def read_ncu(path: str | os.PathLike[str], progress: Progress | None = None) -> NcuReport:
    """Read what Nsight Compute left: a CSV export (also gzip), or its own report, which an installed ncu exports.

    Raises:
        TraceError: there is no such file, or no launch in it. Damage is no error: ``lost`` says what is missing.
    """
    file = Path(path)
    if file.suffix in NCU_OWN:
        with tempfile.TemporaryDirectory(prefix="perfkit-ncu-") as folder:
            return _read_csv(export_report(file, Path(folder)), file, progress)
    return _read_csv(file, file, progress)


def _read_csv(file: Path, named: Path, progress: Progress | None) -> NcuReport:
    try:
        lines = _Lines(FileText(file, progress))
        table = _Table(lines)
        table.read()
    except FileNotFoundError:
        raise TraceError(f"{named} does not exist; give the path of a CSV that ncu exported") from None
    except OSError as error:
        raise TraceError(f"{named} cannot be read: {error}") from None
    launches = table.launches()
    if not launches:
        raise TraceError(f"{named} {_why_empty(lines, table)}")
    return NcuReport(path=named, launches=launches, lost=tuple(table.lost()))


def _why_empty(lines: _Lines, table: _Table) -> str:
    said = f"; ncu said: {' '.join(lines.errors)}" if lines.errors else ""
    if said and not table.found:
        return f"holds no launch{said}"
    if table.found:
        damage = "".join(f"; {sentence}" for sentence in table.lost())
        return f"holds a table of Nsight Compute without a launch: no kernel was profiled{damage}"
    if lines.empty:
        return "is empty; the program that wrote it was probably stopped: record it again"
    if lines.nsys:
        return "is a table of nsys stats, which has names and times only; give the .nsys-rep or .sqlite it was made of"
    return (
        'holds no table of Nsight Compute (a header with "Kernel Name"); make one with: '
        "ncu --import REPORT.ncu-rep --page raw --csv > kernels.csv"
    )


def _decoder(start: bytes) -> codecs.IncrementalDecoder:
    """By the mark at its start: PowerShell redirects into UTF-16."""
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return codecs.getincrementaldecoder("utf-16")("replace")
    return codecs.getincrementaldecoder("utf-8-sig")("replace")


class _Lines:
    """The lines of a file but those of ncu's own; a line that is too long or was cut at the end is left out."""

    def __init__(self, text: FileText) -> None:
        self._text = text
        self.too_long = 0
        self.cut = False
        self.errors: list[str] = []
        self.nsys = False
        self.empty = True
        self._lines = self._read()

    @property
    def damage(self) -> str | None:
        return self._text.damage

    def __iter__(self) -> Iterator[str]:
        return self._lines

    def _read(self) -> Iterator[str]:
        decoder: codecs.IncrementalDecoder | None = None
        pending, skipping = "", False
        for block in self._text:
            self.empty = False
            decoder = decoder or _decoder(block)
            *whole, pending = (pending + decoder.decode(block)).split("\n")
            for line in whole:
                if not skipping and len(line) <= _LONGEST_LINE:
                    yield from self._kept(line)
                else:
                    self.too_long += not skipping
                skipping = False
            if len(pending) > _LONGEST_LINE:
                self.too_long += not skipping
                pending, skipping = "", True
        if pending and not skipping:
            if self._text.damage is not None or pending.count('"') % 2:
                self.cut = True
            else:
                yield from self._kept(pending)

    def _kept(self, line: str) -> Iterator[str]:
        if line.startswith("=="):
            if line.startswith("==ERROR==") and len(self.errors) < _MOST_TOLD:
                self.errors.append(line.removeprefix("==ERROR==").strip()[:300])
            return
        self.nsys = self.nsys or ("Total Time (ns)" in line and "Instances" in line)
        yield f"{line.rstrip(chr(13))}\n"


#: The columns that tell a launch from others.
_LAUNCH = ("ID", "Process ID", "Kernel Name", "Device", "Stream", "Grid Size", "Block Size", "CC")


class _Columns(NamedTuple):
    """Where what stands in a table: one of the raw page where ``metric`` is None, else a long one."""

    length: int
    launch: tuple[int | None, ...]  # as `_LAUNCH`
    kernel: int
    id: int | None
    invocations: int | None
    metric: int | None
    unit: int | None
    value: int | None
    rule: int | None
    wide: tuple[tuple[int, str], ...]  # column, metric


class _Row(NamedTuple):
    """What is known of a launch while the table is read; values as they are written, for their locale shows late."""

    cells: tuple[str, ...]  # as `_LAUNCH`
    invocations: str
    values: dict[str, tuple[str, str]]


class _Table:
    """Rows of all tables of a file, put together by launch."""

    def __init__(self, lines: _Lines) -> None:
        self._lines = lines
        self._rows: dict[tuple[str, ...], _Row] = {}
        self._room = _MOST_VALUES
        self._names: dict[str, str] = {}
        self._damaged = 0
        self._left_out = 0
        self._no_numbers: Counter[str] = Counter()
        self.found = False
        self.mixed = False

    def read(self) -> None:
        """Read the file through."""
        lines = iter(self._lines)
        header = next((line for line in lines if _delimiter(line)), None)
        if header is None:
            return
        self.found = True
        delimiter = _delimiter(header) or ","
        columns = _columns(next(csv.reader([header], delimiter=delimiter)))
        units: list[str] = []
        tables = 0
        reader = csv.reader(lines, delimiter=delimiter)
        while True:
            try:
                row = next(reader)
            except StopIteration:
                return
            except csv.Error:
                # A field without an end: what it swallowed is lost, the rows behind it are not.
                self._damaged += 1
                reader = csv.reader(lines, delimiter=delimiter)
                continue
            if _is_header(row):
                columns, units, tables = _columns(row), [], tables + 1
            elif columns.metric is None and len(row) == columns.length and not row[columns.kernel]:
                units = row
            elif len([cell for cell in row if cell]) > 1:
                self._add(row, columns, units, str(tables))

    def _add(self, row: list[str], columns: _Columns, units: list[str], table: str) -> None:
        if not self._fits(row, columns):
            self._damaged += 1
            return
        cells = tuple(self._name(row[at]) if at is not None else "" for at in columns.launch)
        # A wide table has a row per launch, whether or not it has IDs.
        key = (table if columns.metric is not None or columns.id is not None else f"{table} {len(self._rows)}", *cells)
        known = self._rows.get(key)
        if known is None:
            self._room -= _LAUNCH_WEIGHT
            if self._room <= 0:
                self._left_out += 1
                return
            known = _Row(cells, row[columns.invocations] if columns.invocations is not None else "1", {})
            self._rows[key] = known
            self.mixed = self.mixed or (
                columns.metric is not None and columns.id is None and columns.invocations is None
            )
        for metric, text, unit in _values(row, columns, units):
            if metric in known.values:
                continue
            self._room -= 1
            if self._room <= 0:
                self._left_out += 1
                return
            known.values[self._name(metric)] = (text[:_LONGEST_NUMBER], self._name(unit))

    @staticmethod
    def _fits(row: list[str], columns: _Columns) -> bool:
        if not row[columns.kernel : columns.kernel + 1] or not row[columns.kernel] or any(row[columns.length :]):
            return False
        # A long table may leave out the cells of rules behind the value.
        needed = columns.length if columns.value is None else columns.value + 1
        return len(row) >= needed and (columns.id is None or row[columns.id].strip().isdecimal())

    def _name(self, name: str) -> str:
        """One object for each name, however often it stands in the file."""
        name = name[:_LONGEST_NAME]
        if name not in self._names:
            self._room -= 1 + len(name) // 100
            self._names[name] = name
        return self._names[name]

    def launches(self) -> tuple[Launch, ...]:
        """All launches, with their values as numbers."""
        comma = decimal_comma(text for row in self._rows.values() for text, _ in row.values.values())
        return tuple(self._launch(row, comma) for row in self._rows.values())

    def _launch(self, row: _Row, comma: bool) -> Launch:
        metrics = {}
        for metric, (text, unit) in row.values.items():
            value = number(text, comma)
            if value is not None:
                value *= factor(unit or ("ns" if metric.startswith("gpu__time_duration") else ""))
            if value is None or abs(value) >= _MOST:
                self._no_numbers[metric] += text.strip().lower() not in _NOT_MEASURED
                continue
            metrics[metric] = value
        id_, process, kernel, device, stream, grid, block, capability = row.cells
        return Launch(
            id=whole(id_),
            process=process,
            kernel=kernel,
            device=whole(device),
            stream=whole(stream),
            grid=dimensions(grid) or sized("grid", metrics),
            block=dimensions(block) or sized("block", metrics),
            compute_capability=capability[:10] or None,
            metrics=metrics,
            count=max(1, round(min(number(row.invocations, False) or 1, _MOST_COUNT))),
        )

    def lost(self) -> Iterator[str]:
        """What is missing, in sentences."""
        lines = self._lines
        if lines.damage is not None:
            yield f"{lines.damage}: launches behind that are missing"
        if lines.cut:
            yield "the file ends in the middle of a row: that row, and what came after it, is missing"
        if lines.too_long:
            yield f"{lines.too_long} lines of more than {_LONGEST_LINE >> 20} MiB were left out"
        if self._damaged:
            yield f"{self._damaged} rows do not fit their table and were left out: a launch or some of its values"
        if self.mixed:
            yield "the table has no launch IDs, so launches of a kernel are one: its first values are shown"
        if self._left_out:
            yield (
                f"only the first {len(self._rows):,} launches were read, {self._left_out:,} rows after them were left"
                " out: profile fewer (--launch-count)"
            )
        told = [(metric, count) for metric, count in self._no_numbers.items() if count]
        for metric, count in told[:_MOST_TOLD]:
            yield f"{metric}: {count} of its values {'are' if count > 1 else 'is'} no number"
        yield from (f"ncu said: {error}" for error in lines.errors)


def _delimiter(header: str) -> str | None:
    """What separates the cells of a header; None where the line is none. Spreadsheets save with ``;`` or tabs."""
    if "Kernel Name" not in header:
        return None
    try:
        return next((d for d in ",;\t" if _is_header(next(csv.reader([header], delimiter=d), []))), None)
    except csv.Error:
        return None


def _is_header(row: list[str]) -> bool:
    """Whether a row names the columns of launches or of their metrics: the source page only names its kernel."""
    return "Kernel Name" in row and any(cell in ("ID", "Process ID", "Metric Name") or "__" in cell for cell in row)


def _columns(header: list[str]) -> _Columns:
    at = {name.strip(): column for column, name in reversed(list(enumerate(header)))}
    value = at.get("Metric Value", at.get("Average"))
    long = "Metric Name" in at and value is not None
    named = set(_LAUNCH) if not long else set(header)
    wide = [(column, metric_of(name, "")) for column, name in enumerate(header) if name.strip() not in named]
    return _Columns(
        length=len(header),
        launch=tuple(at.get(name) for name in _LAUNCH),
        kernel=at["Kernel Name"],
        id=at.get("ID"),
        invocations=at.get("Invocations"),
        metric=at["Metric Name"] if long else None,
        unit=at.get("Metric Unit"),
        value=value if long else None,
        rule=at.get("Rule Description"),
        wide=tuple((column, sys.intern(metric)) for column, metric in wide if metric is not None),
    )


def _values(row: list[str], columns: _Columns, units: list[str]) -> Iterator[tuple[str, str, str]]:
    """(metric, value, unit) of each metric of a row that is looked at, as written."""
    if columns.metric is None or columns.value is None:
        yield from ((metric, row[column], units[column] if units else "") for column, metric in columns.wide)
        return
    unit = row[columns.unit].strip() if columns.unit is not None else ""
    if metric := metric_of(row[columns.metric], unit):
        yield metric, row[columns.value], unit
    elif columns.rule is not None and len(row) > columns.rule and (stall := stall_of_rule(row[columns.rule])):
        yield *stall, "%"
