"""The tables of a CSV export of Nsight Compute, put together by launch.

``ncu --csv`` prints three kinds of tables. ``--page raw`` has one row per launch, a column per metric, and the units in
a second header row. ``--page details``, the default, has one row per launch and metric, with labels that changed over
the years, and the texts of ncu's own rules. ``--print-summary per-kernel`` has means over launches. A file may have
both pages of the same launches. The output of the program and ncu's own messages (``==PROF==``) may come before and
between them. Numbers are formatted for the locale of the machine.
"""

from __future__ import annotations

import codecs
import csv
import sys
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from perfkit.trace.file_text import FileText
from perfkit.trace.nsight._ncu_metrics import (
    dimensions,
    dimensions_from_metrics,
    integer,
    is_decimal_comma,
    metric_of,
    number,
    stall_of_rule,
    unit_factor,
)

#: A row of the raw page has 1,000 to 3,000 columns: 300 kB with long names.
_MAX_LINE = 4 << 20
#: Maximum number of values that are kept, and how many values one launch counts as: about 300 MB in total. A report
#: with all sections has 120 of the values read here per launch; ncu itself takes a second or more for each launch.
_MAX_VALUES = 1_000_000
_LAUNCH_WEIGHT = 10
#: Names are cut to this length: longer ones are template arguments.
_MAX_NAME = 2_000
#: A number has fewer characters, with separators.
_MAX_NUMBER = 64
#: No metric of a kernel comes near this; larger whole numbers are not exact in JSON.
_MAX_VALUE = 1e18
#: Larger counts of launches are damage.
_MAX_COUNT = 1e12
#: Maximum number of ncu's own errors, and of metrics with invalid numbers, that are reported.
_MAX_REPORTED = 3

#: What ncu writes where it has no value.
_NOT_MEASURED = ("", "n/a", "nan", "-nan", "inf", "-inf", "-")


class LaunchRule(msgspec.Struct, frozen=True, kw_only=True):
    """What one of ncu's own rules says about a launch.

    ``kind`` is ncu's (``OPT``, ``WRN``, ``INF``). ``speedup_percent`` is ncu's estimate of the part of the launch's
    time that the advice saves; where ``scope`` is ``local``, of the section's metric only. None where ncu gives none,
    as before version 2023.
    """

    name: str
    section: str
    kind: str
    text: str
    scope: str | None = None
    speedup_percent: float | None = None


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """One launch of a kernel, or the mean of ``count`` launches; ``metrics`` by ncu's names.

    Values are in bytes, seconds, cycles, percent, and these per second. None where the report has no value.
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
    rules: tuple[LaunchRule, ...] = ()


def decoder_for(start: bytes) -> codecs.IncrementalDecoder:
    """A decoder for text with this start: PowerShell redirects output as UTF-16, with a byte order mark."""
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return codecs.getincrementaldecoder("utf-16")("replace")
    return codecs.getincrementaldecoder("utf-8-sig")("replace")


class ReportLines:
    """The lines of a file without ncu's own messages; a line that is too long, or cut at the end, is skipped."""

    def __init__(self, text: FileText) -> None:
        self._text = text
        self.too_long = 0
        self.cut = False
        self.errors: list[str] = []
        self.is_nsys_stats = False
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
            decoder = decoder or decoder_for(block)
            *whole, pending = (pending + decoder.decode(block)).split("\n")
            for line in whole:
                if not skipping and len(line) <= _MAX_LINE:
                    yield from self._kept(line)
                else:
                    self.too_long += not skipping
                skipping = False
            if len(pending) > _MAX_LINE:
                self.too_long += not skipping
                pending, skipping = "", True
        if pending and not skipping:
            if self._text.damage is not None or pending.count('"') % 2:
                self.cut = True
            else:
                yield from self._kept(pending)

    def _kept(self, line: str) -> Iterator[str]:
        if line.startswith("=="):
            if line.startswith("==ERROR==") and len(self.errors) < _MAX_REPORTED:
                self.errors.append(line.removeprefix("==ERROR==").strip()[:300])
            return
        self.is_nsys_stats = self.is_nsys_stats or ("Total Time (ns)" in line and "Instances" in line)
        yield f"{line.rstrip(chr(13))}\n"


#: The columns that identify a launch.
_LAUNCH = ("ID", "Process ID", "Kernel Name", "Device", "Stream", "Grid Size", "Block Size", "CC")
#: The columns of a rule of ncu beside its text; the last two since version 2023.
_RULE = ("Rule Name", "Section Name", "Rule Type", "Estimated Speedup Type", "Estimated Speedup")


class _TableColumns(NamedTuple):
    """Positions of the columns of a table: of the raw page where ``metric`` is None, else with one row per metric."""

    length: int
    launch: tuple[int | None, ...]  # as `_LAUNCH`
    kernel: int
    id: int | None
    invocations: int | None
    metric: int | None
    unit: int | None
    value: int | None
    rule: int | None
    rule_parts: tuple[int | None, ...]  # as `_RULE`
    wide: tuple[tuple[int, str], ...]  # column, metric
    unread: tuple[str, ...]  # the first columns of a raw page that are not read


class _LaunchRow(NamedTuple):
    """A launch while the table is read; values as text, because the locale is only known at the end."""

    cells: tuple[str, ...]  # as `_LAUNCH`
    invocations: str
    values: dict[str, tuple[str, str]]
    rules: dict[tuple[str, ...], None]  # text, then as `_RULE`; a dict keeps their order


class ReportTables:
    """The rows of all tables of a file, put together by launch."""

    def __init__(self, lines: ReportLines) -> None:
        self._lines = lines
        self._rows: dict[tuple[str, ...], _LaunchRow] = {}
        self._capacity = _MAX_VALUES
        self._names: dict[str, str] = {}
        self._damaged = 0
        self._left_out = 0
        self._invalid: Counter[str] = Counter()
        self._unread: dict[str, None] = {}
        self.found = False
        self.mixed = False

    def read(self) -> None:
        """Read the whole file."""
        lines = iter(self._lines)
        header = next((line for line in lines if _delimiter(line)), None)
        if header is None:
            return
        self.found = True
        delimiter = _delimiter(header) or ","
        columns = _columns(next(csv.reader([header], delimiter=delimiter)))
        units: list[str] = []
        tables = Counter([columns.metric is None])
        reader = csv.reader(lines, delimiter=delimiter)
        while True:
            try:
                row = next(reader)
            except StopIteration:
                return
            except csv.Error:
                # A quoted field without an end: the text in it is lost, the rows after it are not.
                self._damaged += 1
                reader = csv.reader(lines, delimiter=delimiter)
                continue
            if _is_header(row):
                columns, units = _columns(row), []
                tables[columns.metric is None] += 1
            elif columns.metric is None and len(row) == columns.length and not row[columns.kernel]:
                units = row
            elif len([cell for cell in row if cell]) > 1:
                # The first raw and the first details table of a file are of the same launches, and so on.
                self._add(row, columns, units, str(tables[columns.metric is None]))

    def _add(self, row: list[str], columns: _TableColumns, units: list[str], table: str) -> None:
        if not self._fits(row, columns):
            self._damaged += 1
            return
        cells = tuple(self._name(row[at]) if at is not None else "" for at in columns.launch)
        # A wide table has a row per launch, whether or not it has IDs.
        key = (table if columns.metric is not None or columns.id is not None else f"{table} {len(self._rows)}", *cells)
        known = self._rows.get(key)
        if known is None:
            self._capacity -= _LAUNCH_WEIGHT
            if self._capacity <= 0:
                self._left_out += 1
                return
            known = _LaunchRow(cells, row[columns.invocations] if columns.invocations is not None else "1", {}, {})
            self._rows[key] = known
            self.mixed = self.mixed or (
                columns.metric is not None and columns.id is None and columns.invocations is None
            )
        for metric, text, unit in _values(row, columns, units):
            if metric in known.values:
                continue
            self._capacity -= 1
            if self._capacity <= 0:
                self._left_out += 1
                return
            known.values[self._name(metric)] = (text[:_MAX_NUMBER], self._name(unit))
        if columns.rule is not None and columns.rule < len(row) and row[columns.rule].strip():
            if self._capacity <= 0:
                self._left_out += 1
                return
            parts = (row[at] if at is not None and at < len(row) else "" for at in columns.rule_parts)
            known.rules[tuple(self._name(cell.strip()) for cell in (row[columns.rule], *parts))] = None
        elif not known.values and len(self._unread) < _MAX_REPORTED:
            unread = [row[columns.metric]] if columns.metric is not None else columns.unread
            self._unread |= {name[:_MAX_NUMBER]: None for name in unread if name}

    @staticmethod
    def _fits(row: list[str], columns: _TableColumns) -> bool:
        if not row[columns.kernel : columns.kernel + 1] or not row[columns.kernel] or any(row[columns.length :]):
            return False
        # A table with one row per metric may lack the cells of rules after the value.
        needed = columns.length if columns.value is None else columns.value + 1
        return len(row) >= needed and (columns.id is None or row[columns.id].strip().isdecimal())

    def _name(self, name: str) -> str:
        """The same object for equal names, however often they are in the file."""
        name = name[:_MAX_NAME]
        if name not in self._names:
            self._capacity -= 1 + len(name) // 100
            self._names[name] = name
        return self._names[name]

    def launches(self) -> tuple[Launch, ...]:
        """All launches, with their values as numbers; complete after `read`."""
        comma = is_decimal_comma(text for row in self._rows.values() for text, _ in row.values.values())
        return tuple(self._launch(row, comma) for row in self._rows.values())

    def _launch(self, row: _LaunchRow, comma: bool) -> Launch:
        metrics = {}
        for metric, (text, unit) in row.values.items():
            value = number(text, comma)
            if value is not None:
                value *= unit_factor(unit or ("ns" if metric.startswith("gpu__time_duration") else ""))
            if value is None or abs(value) >= _MAX_VALUE:
                self._invalid[metric] += text.strip().lower() not in _NOT_MEASURED
                continue
            metrics[metric] = value
        rules = (_rule(cells, comma) for cells in row.rules)
        id_, process, kernel, device, stream, grid, block, capability = row.cells
        return Launch(
            id=integer(id_),
            process=process,
            kernel=kernel,
            device=integer(device),
            stream=integer(stream),
            grid=dimensions(grid) or dimensions_from_metrics("grid", metrics),
            block=dimensions(block) or dimensions_from_metrics("block", metrics),
            compute_capability=capability[:10] or None,
            metrics=metrics,
            count=max(1, round(min(number(row.invocations, False) or 1, _MAX_COUNT))),
            rules=tuple(rules),
        )

    def lost(self) -> Iterator[str]:
        """One sentence for each thing that is missing."""
        lines = self._lines
        if lines.damage is not None:
            yield f"{lines.damage}: launches after that point are missing"
        if lines.cut:
            yield "the file ends in the middle of a row: that row and later ones are missing"
        if lines.too_long:
            yield f"{lines.too_long} lines were skipped because they are longer than {_MAX_LINE >> 20} MiB"
        if self._damaged:
            yield f"{self._damaged} rows were skipped because they do not fit their table, so values are missing"
        if self.mixed:
            yield "the table has no launch IDs, so the launches of a kernel are one, with the values of the first"
        if self._left_out:
            yield (
                f"only the first {len(self._rows):,} launches were read, {self._left_out:,} later rows were skipped:"
                " profile fewer launches (--launch-count)"
            )
        if self._rows and not any(row.values or row.rules for row in self._rows.values()):
            names = f" ({', '.join(list(self._unread)[:_MAX_REPORTED])}, ...)" if self._unread else ""
            yield (
                f"none of its metrics is known here{names}: its sections have none of those that are read, or this"
                " version of ncu has new names; export it with --page raw, or collect it with --set full"
            )
        invalid = [(metric, count) for metric, count in self._invalid.items() if count]
        for metric, count in invalid[:_MAX_REPORTED]:
            yield f"{metric}: {count} of its values {'are' if count > 1 else 'is'} not a number"
        yield from (f"ncu reported: {error}" for error in lines.errors)


def _delimiter(header: str) -> str | None:
    """The delimiter of a header; None if the line is not a header. Spreadsheets save with ``;`` or tabs."""
    if "Kernel Name" not in header:
        return None
    try:
        return next((d for d in ",;\t" if _is_header(next(csv.reader([header], delimiter=d), []))), None)
    except csv.Error:
        return None


def _is_header(row: list[str]) -> bool:
    """Whether a row names the columns of a table of launches or metrics: on the source page a row names a kernel."""
    return "Kernel Name" in row and any(cell in ("ID", "Process ID", "Metric Name") or "__" in cell for cell in row)


def _columns(header: list[str]) -> _TableColumns:
    at = {name.strip(): column for column, name in reversed(list(enumerate(header)))}
    value = at.get("Metric Value", at.get("Average"))
    long = "Metric Name" in at and value is not None
    named = set(_LAUNCH) if not long else set(header)
    wide = [(column, metric_of(name, "")) for column, name in enumerate(header) if name.strip() not in named]
    return _TableColumns(
        length=len(header),
        launch=tuple(at.get(name) for name in _LAUNCH),
        kernel=at["Kernel Name"],
        id=at.get("ID"),
        invocations=at.get("Invocations"),
        metric=at["Metric Name"] if long else None,
        unit=at.get("Metric Unit"),
        value=value if long else None,
        rule=at.get("Rule Description"),
        rule_parts=tuple(at.get(name) for name in _RULE),
        wide=tuple((column, sys.intern(metric)) for column, metric in wide if metric is not None),
        unread=tuple(header[column] for column, metric in wide if metric is None and "__" in header[column])[
            :_MAX_REPORTED
        ],
    )


def _values(row: list[str], columns: _TableColumns, units: list[str]) -> Iterator[tuple[str, str, str]]:
    """(metric, value, unit) of each known metric of a row, as text."""
    if columns.metric is None or columns.value is None:
        yield from ((metric, row[column], units[column] if units else "") for column, metric in columns.wide)
        return
    unit = row[columns.unit].strip() if columns.unit is not None else ""
    if metric := metric_of(row[columns.metric], unit):
        yield metric, row[columns.value], unit
    elif columns.rule is not None and len(row) > columns.rule and (stall := stall_of_rule(row[columns.rule])):
        yield *stall, "%"


def _rule(cells: tuple[str, ...], comma: bool) -> LaunchRule:
    text, name, section, kind, scope, speedup = cells
    percent = number(speedup, comma)
    valid = percent is not None and 0 < percent <= 100
    return LaunchRule(
        name=name,
        section=section,
        kind=kind,
        text=text,
        scope=scope or None,
        speedup_percent=percent if valid else None,
    )
