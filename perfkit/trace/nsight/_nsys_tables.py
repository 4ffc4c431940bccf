"""The tables of an nsys export, whatever its schema, in blocks of integers.

Exports drift: tables are absent when empty, columns come and go. So every table is asked for what it has,
and what it lacks gets a constant. The file may come from anyone: only plain tables are read (views and
virtual tables would run what the file says), nothing is written, no code is loaded, and the work is bounded.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from perfkit.errors import TraceError
from perfkit.trace.intervals import Ints

#: Rows fetched at once: measured, 1,000 are a fifth faster than 50,000, whose objects leave the cache.
BATCH = 1_000
#: Batches in one block: what numpy does per call vanishes, and a block stays below 10 MB.
BATCHES = 64
#: Instructions of SQLite's machine between two looks at the clock: about a millisecond.
INSTRUCTIONS = 100_000
#: Seconds of computing that a file may take: 60, and one for each MB. Real exports are read at 50 MB/s and more.
SECONDS = 60
SECONDS_PER_BYTE = 1e-6
#: A row of SQLite takes at least these many bytes. What has more rows has pages that contain each other: a small file
#: that would fill the memory.
LEAST_ROW = 6
#: What damage raises; the text of SQLite's own errors may quote a schema that is no UTF-8.
DAMAGE = (sqlite3.Error, UnicodeDecodeError)
#: Characters of a text that are kept: more than the longest template names seen (16,000).
MOST_TEXT = 20_000


class Column(NamedTuple):
    """A column with what stands for a missing value, and for a missing column."""

    name: str
    default: int = -1


class NsysTables:
    """An export, opened to be read; ``lost`` says what was damaged.

    Args:
        path: The SQLite file.
        seconds: How long reading may compute; None for what its size allows.

    Raises:
        TraceError: it is no SQLite database, or one whose schema is damaged.
    """

    def __init__(self, path: Path, seconds: float | None = None) -> None:
        self.path = path
        self.lost: list[str] = []
        size = path.stat().st_size
        self._most_rows = size // LEAST_ROW
        self._seconds = SECONDS + SECONDS_PER_BYTE * size if seconds is None else seconds
        self._began = time.thread_time()
        self._columns: dict[str, frozenset[str]] = {}
        try:
            # Immutable: nothing is written beside the file, no journal is looked for, no lock is taken.
            self._database = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
        except DAMAGE as error:
            raise TraceError(f"{path} cannot be opened as SQLite: {error}") from None
        try:
            self._database.set_progress_handler(self._is_late, INSTRUCTIONS)
            # Its schema must not call functions, its cells are checked before they are used, and its text need not
            # be UTF-8. Extensions cannot be loaded unless asked for.
            for pragma in ("trusted_schema = off", "query_only = on", "cell_size_check = on", "mmap_size = 0"):
                self._database.execute(f"pragma {pragma}")
            self._database.text_factory = lambda raw: raw.decode("utf-8", "replace")
            # A root page only where rows are stored: views and virtual tables have none.
            found = self._database.execute("select name from sqlite_master where type = 'table' and rootpage > 0")
            self.names = tuple(name for (name,) in found if isinstance(name, str) and '"' not in name)
        except DAMAGE as error:
            self._database.close()
            raise self._damaged(error) from None
        for ending, what in (("-wal", "a write-ahead log"), ("-journal", "a journal")):
            beside = path.with_name(path.name + ending)
            if beside.exists() and beside.stat().st_size:
                self.lost.append(
                    f"{what} lies beside {path.name}: its writer had not ended, and what stands only there is"
                    " not read; export the report again"
                )

    def __enter__(self) -> NsysTables:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._database.close()

    def has(self, table: str, *columns: str) -> bool:
        """Whether the export has this table with these columns."""
        if table not in self._columns:
            known = table in self.names
            # Columns that are computed when read are not among these.
            rows = self._all(f'pragma table_info("{table}")') if known else []
            self._columns[table] = frozenset(str(row[1]) for row in rows)
        return bool(self._columns[table]) and self._columns[table].issuperset(columns)

    def has_row_ids(self, table: str) -> bool:
        """Whether rows of this table can be found again by number."""
        try:
            self._database.execute(f'select rowid from "{table}" limit 1')
        except DAMAGE:
            return False
        return True

    def integers(self, table: str, *columns: Column, where: str = "") -> Iterator[list[Ints]]:
        """Blocks of columns as int64; what is no integer becomes the column's default.

        Rows come in the order of the file. What is damaged ends the table, and is told in ``lost``.
        """
        defaults = [column.default for column in columns]
        chosen = ", ".join(self._expression(table, column) for column in columns)
        parts: list[Ints] = []
        for batch in self._batches(table, f'select {chosen} from "{table}" {where}'):
            parts.append(_matrix(batch, defaults))
            if len(parts) == BATCHES:
                yield list(np.ascontiguousarray(np.concatenate(parts).T))
                parts = []
        if parts:
            yield list(np.ascontiguousarray(np.concatenate(parts).T))

    def values(self, table: str, *columns: str, where: str = "") -> Iterator[tuple[Any, ...]]:
        """Rows of a table as they are, text cut to 20,000 characters; None for a column that it lacks."""
        chosen = ", ".join(
            f'case typeof("{name}") when \'text\' then substr("{name}", 1, {MOST_TEXT}) else "{name}" end'
            if self.has(table, name)
            else "null"
            for name in columns
        )
        for batch in self._batches(table, f'select {chosen} from "{table}" {where}'):
            yield from batch

    def rows(self, table: str, ids: list[int], *columns: str) -> Iterator[tuple[Any, ...]]:
        """The rows with these row ids, in this order; a row that is gone as all None."""
        chosen = ", ".join(f'"{name}"' if self.has(table, name) else "null" for name in columns)
        query = f'select {chosen} from "{table}" where rowid = ?'
        for one in ids:
            yield next(iter(self._all(query, one)), (None,) * len(columns))

    # -- SQLite -------------------------------------------------------------------------------------------

    def _expression(self, table: str, column: Column) -> str:
        if column.name == "rowid":
            return "rowid" if self.has_row_ids(table) else str(column.default)
        if not self.has(table, column.name):
            return str(column.default)
        return f'ifnull("{column.name}", {column.default})'

    def _batches(self, table: str, query: str) -> Iterator[list[tuple[Any, ...]]]:
        if not self.has(table):
            return
        done = 0
        try:
            cursor = self._database.execute(query)
            while batch := cursor.fetchmany(BATCH):
                done += len(batch)
                if done > self._most_rows:
                    raise TraceError(
                        f"{self.path} is damaged: its table {table} has more rows than fit into it; export it again"
                        " from the .nsys-rep"
                    )
                yield batch
        except DAMAGE as error:
            if self._is_late():
                raise self._damaged(error) from None
            self.lost.append(f"the table {table} is damaged ({error}): {done} rows of it could be read")

    def _all(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        try:
            return self._database.execute(query, values).fetchall()
        except DAMAGE as error:
            raise self._damaged(error) from None

    def _is_late(self) -> bool:
        return time.thread_time() - self._began > self._seconds

    def _damaged(self, error: Exception) -> TraceError:
        if self._is_late():
            return TraceError(
                f"{self.path} took more than {self._seconds:.0f} s to read, which no export of its size does; export"
                " it again from the .nsys-rep"
            )
        what = "its schema is no text" if isinstance(error, UnicodeDecodeError) else error
        return TraceError(f"{self.path} is a damaged SQLite file ({what}); export it again from the .nsys-rep")


def _matrix(batch: list[tuple[Any, ...]], defaults: list[int]) -> Ints:
    cells = len(batch) * len(defaults)
    try:
        flat = np.fromiter(chain.from_iterable(batch), np.int64, cells)
    except (TypeError, ValueError, OverflowError):
        flat = np.array([_integer(v, d) for row in batch for v, d in zip(row, defaults, strict=True)], np.int64)
    return flat.reshape(-1, len(defaults))


def _integer(value: Any, default: int) -> int:
    try:
        whole = int(value)
    except (TypeError, ValueError, OverflowError):
        return default
    return whole if -(2**63) <= whole < 2**63 else default


def recoded(values: Ints, code: Callable[[int], int]) -> Ints:
    """Each value replaced by its code; ``code`` is asked once for each that occurs."""
    if not values.size:
        return values
    low = int(values.min())
    span = int(values.max()) - low + 1
    if span > 4 * values.size + 1024:
        unique, place = np.unique(values, return_inverse=True)
        return np.array([code(one) for one in unique.tolist()], np.int64)[place]
    # Ids that lie close together, as nearly all do: a table of all between is faster than sorting them.
    at = values - low
    table = np.zeros(span, np.int64)
    table[at] = 1
    found = np.flatnonzero(table)
    table[found] = [code(one + low) for one in found.tolist()]
    return np.asarray(table[at], np.int64)
