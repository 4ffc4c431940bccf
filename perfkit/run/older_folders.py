"""Records of run folders that an older perfkit wrote, converted to those of this one.

Version 1 wrote a place as an array ``[file, line, function]`` where `Location` is now, the caller of a compiled
function as fields of its own, and flags (``window``, ``extra``, ``dry``) where `Step.kind` is now.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from perfkit._versioned_json import decode_json
from perfkit.run.records import Lines, Rank, Step

_STEP_DECODER = msgspec.json.Decoder(Step)


def converted(data: bytes, kind: type[msgspec.Struct]) -> Any:
    """The JSON values of a record that version 1 wrote, as `msgspec.convert` takes them for ``kind``."""
    record = decode_json(data, Any)
    if isinstance(record, dict) and kind in _CONVERT:
        _CONVERT[kind](record)
    return record


def decode_step(line: bytes) -> Step:
    """A row of steps.jsonl, of this version or an older one.

    Raises:
        msgspec.DecodeError: the row is damaged.
    """
    # The rows have no version. An ordinary step's is the same in both; all others have a kind since version 2.
    if b'"kind"' in line or not (b'"window"' in line or b'"dry"' in line):
        try:
            return _STEP_DECODER.decode(line)
        except (RecursionError, UnicodeError) as error:
            raise msgspec.DecodeError(str(error)) from None
    row = decode_json(line, Any)
    if isinstance(row, dict):
        # Version 1 did not distinguish lines from ops, nor warmup from window.
        row["kind"] = "dry" if row.get("dry") else "lines" if row.get("extra") else "window"
    return msgspec.convert(row, Step)


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
