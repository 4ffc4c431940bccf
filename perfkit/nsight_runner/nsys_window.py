"""Cuts an nsys export of a whole program to its last window, which is the NVTX range ``perfkit.window``.

Keeps what threads did in the window, cut at its two ends, and all device work launched in it, also if it ran later; of
samples (GPU metrics), which have one time, those within it.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

from perfkit._nvtx_names import WINDOW
from perfkit.errors import TraceError

_RANGES = "NVTX_EVENTS"
_CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
#: Marks and ranges of NVTX_EVENTS; its other rows name domains and categories.
_TIMED = "(34, 59, 60, 70, 71)"
#: What nsys says about the whole recording, such as lost events: it has times, and concerns every window.
_MESSAGES = "DIAGNOSTIC_EVENT"


class NsysWindow(NamedTuple):
    """A window of an export: its number in the run, the number of windows in the export, and its extent in export time.

    The number is the payload of the range; without a payload, it is the index in the export.
    """

    number: int
    windows: int
    start_ns: int
    end_ns: int


def cut_to_last_window(export: Path, target: Path) -> NsysWindow | None:
    """Write the last window of an export as an export of its own; None without writing if there is no window.

    Raises:
        TraceError: the export cannot be read, or the target cannot be written.
    """
    part = target.with_name(f".{target.name}.part")
    part.unlink(missing_ok=True)
    try:
        with closing(sqlite3.connect(f"{part.absolute().as_uri()}?mode=rwc", uri=True)) as database:
            database.execute("attach ? as whole", (f"{export.absolute().as_uri()}?mode=ro&immutable=1",))
            window = _last_window(database)
            if window is not None:
                with database:
                    _copy(database, window)
        if window is not None:
            part.replace(target)
        return window
    except (sqlite3.Error, OSError) as error:
        raise TraceError(f"{export} could not be cut to its last window: {error}") from None
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def _columns(database: sqlite3.Connection, table: str) -> set[str]:
    return {str(row[1]) for row in database.execute(f'pragma whole.table_info("{table}")')}


def _last_window(database: sqlite3.Connection) -> NsysWindow | None:
    columns = _columns(database, _RANGES)
    if not {"start", "end", "eventType", "textId"} <= columns:
        return None
    text = "coalesce(text, value)" if "text" in columns else "value"
    payload = "int64Value" if "int64Value" in columns else "null"
    found = database.execute(
        f'select {payload}, start, "end" from whole.{_RANGES} left join whole.StringIds on id = textId'
        f' where {text} = ? and eventType in {_TIMED} and "end" > start order by start',
        (WINDOW,),
    ).fetchall()
    if not found:
        return None
    number, start_ns, end_ns = found[-1]
    return NsysWindow(number if number is not None else len(found) - 1, len(found), start_ns, end_ns)


def _copy(database: sqlite3.Connection, window: NsysWindow) -> None:
    names = [
        (name, sql)
        for name, sql in database.execute("select name, sql from whole.sqlite_master where type = 'table'")
        if not name.startswith("sqlite_") and '"' not in name
    ]
    low, high = window.start_ns, window.end_ns
    inside = f'(start < {high} and "end" > {low} or start >= {low} and start < {high})'
    has_calls = {"start", "end", "correlationId", "globalTid"} <= _columns(database, _CALLS)
    if has_calls:
        # Indexed, because each device row is looked up in it.
        database.execute(
            "create temp table launches as select globalTid >> 24 as process, correlationId,"
            f" coalesce(max({inside}), 0) as inside from whole.{_CALLS} group by 1, 2"
        )
        database.execute("create index temp.by_launch on launches (process, correlationId)")
    for name, sql in names:
        database.execute(sql)
        where = "1"
        columns = _columns(database, name)
        timed = {"start", "end"} <= columns
        if name == _RANGES:
            where = f"eventType not in {_TIMED} or {inside}"
        elif timed and has_calls and {"correlationId", "globalPid"} <= columns:
            launched = "(select inside from temp.launches where process = globalPid >> 24 and"
            launched += f' launches.correlationId = "{name}".correlationId)'
            where = f"coalesce({launched}, {inside})"
        elif timed:
            where = inside
        elif "timestamp" in columns and name != _MESSAGES:
            where = f"timestamp >= {low} and timestamp < {high}"
        database.execute(f'insert into main."{name}" select * from whole."{name}" where {where}')
        if timed and "globalTid" in columns:
            rows = f" and eventType in {_TIMED}" if name == _RANGES else ""
            database.execute(f'update main."{name}" set start = {low} where start < {low}{rows}')
            database.execute(f'update main."{name}" set "end" = {high} where "end" > {high}{rows}')
