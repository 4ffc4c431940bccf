"""The text of `dcgmi dmon -e FIELDS`: a table whose header is repeated, with a row per GPU and sample, without times.

    #Entity   SMCLK       TMPTR
    ID                    C
    GPU 0     1755        61

Columns have the header's positions (dcgmi/DeviceMonitor.cpp); a value that was not returned is blank.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from perfkit.trace.dcgm._fields import BY_HEADER, DcgmField, value_of
from perfkit.trace.dcgm._readings import GpuName, Reading, Skipped

HEADER = re.compile(r"^#\s*Entity\b")
#: A whole GPU; instances of a divided one ("GPU-I 0"), links and CPUs are other entities.
_GPU = re.compile(r"^GPU (\d{1,5})(?=\s|$)")
_ENTITY = re.compile(r"^[A-Za-z][\w-]*(?: \d+ LINK)? \d+(?=\s|$)")
_WORD = re.compile(r"\S+")


def dmon_readings(lines: Iterable[str], host: str, skipped: Skipped) -> Iterator[Reading]:
    """The rows; what is not read is counted in ``skipped``."""
    header: _DmonHeader | None = None
    for line in lines:
        if HEADER.match(line):
            header = _header_of(line, skipped)
            continue
        if (entity := _ENTITY.match(line)) is None or header is None:
            # Units, empty lines, and "dmon was stopped due to receiving a signal".
            continue
        if (gpu := _GPU.match(line)) is None:
            skipped.add_entity(entity[0].rpartition(" ")[0])
            continue
        values = {}
        for field, text in _cells(line, entity.end(), header):
            if text:
                try:
                    value = value_of(text, field)
                except ValueError:
                    skipped.damaged += 1
                    continue
                if value is not None:
                    values[field.quantity] = value
        yield Reading(GpuName(host, int(gpu[1])), None, values)


class _DmonColumn(NamedTuple):
    """A column that is read: its field, which one it is, and from where to where it is in a line."""

    field: DcgmField
    position: int
    start: int
    end: int | None


class _DmonHeader(NamedTuple):
    """The columns of a table that are read, each once, of ``width`` in all."""

    columns: tuple[_DmonColumn, ...]
    width: int


def _header_of(line: str, skipped: Skipped) -> _DmonHeader | None:
    """The columns that a line names; None where it names none."""
    words = list(_WORD.finditer(line))[1 if line.startswith("#E") else 2 :]
    ends = [*(word.start() for word in words[1:]), None]
    columns: dict[str, _DmonColumn] = {}
    for position, (word, end) in enumerate(zip(words, ends, strict=False)):
        if (field := BY_HEADER.get(word[0])) is None:
            skipped.add_field(word[0])
        else:
            columns[word[0]] = _DmonColumn(field, position, word.start(), end)
    return _DmonHeader(tuple(columns.values()), len(words)) if words else None


def _cells(line: str, start: int, header: _DmonHeader) -> Iterator[tuple[DcgmField, str]]:
    """The field of each column that is read, and its text in a row."""
    words = line[start:].split()
    if len(words) == header.width:  # also where blanks were changed on the way into the file
        yield from ((column.field, words[column.position]) for column in header.columns)
        return
    for column in header.columns:
        yield column.field, line[column.start : column.end].strip()
