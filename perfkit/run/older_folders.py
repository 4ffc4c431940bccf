"""Records of run folders that an older perfkit wrote, converted to those of this one.

Version 1 wrote a place as an array ``[file, line, function]`` where `Location` is now, and the caller of what
torch.compile compiled as fields of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from perfkit.run.records import Lines, Rank


def converted(data: bytes, kind: type[msgspec.Struct]) -> Any:
    """The JSON values of a record that version 1 wrote, as `msgspec.convert` takes them for ``kind``."""
    record = msgspec.json.decode(data)
    if isinstance(record, dict) and kind in _CONVERT:
        _CONVERT[kind](record)
    return record


def _convert_lines(lines: dict[str, Any]) -> None:
    for row in _rows(lines, "rows"):
        row["called_from"] = _location(row.get("called_from"))
    for row in _rows(lines, "traced"):
        row["callers"] = [_location(place) for place in row.get("callers") or ()]


def _convert_rank(rank: dict[str, Any]) -> None:
    for row in _rows(rank, "compilations"):
        row["called_from"] = _location([row.get("file"), row.get("line"), row.get("function")])


def _rows(record: dict[str, Any], name: str) -> list[dict[str, Any]]:
    rows = record.get(name)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _location(place: Any) -> Any:
    if not isinstance(place, list) or len(place) != 3:
        return place  # None, or damaged, which decoding reports
    file, line, function = place
    return {"file": file, "line": line, "function": function} if file is not None else None


_CONVERT: dict[type[msgspec.Struct], Callable[[dict[str, Any]], None]] = {Lines: _convert_lines, Rank: _convert_rank}
