"""The tables of an nsys export of any schema version, in blocks of integers.

Schemas vary: empty tables are absent, columns come and go. So each table is read with the columns that it has, and a
column that it lacks gets a constant. The file may come from anyone: only plain tables are read (views and virtual
tables would run code of the file), nothing is written, no code is loaded, and the work is bounded.
"""

from __future__ import annotations

import sqlite3
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from perfkit.errors import TraceError
from perfkit.trace.intervals import Ints

#: Rows fetched at once: measured, 1,000 are a fifth faster than 50,000, whose objects do not fit the cache.
BATCH = 1_000
#: Batches in one block: enough to hide the cost of numpy calls, and less than 10 MB.
BATCHES = 64
#: Instructions of SQLite's virtual machine between two checks of the clock: about a millisecond.
INSTRUCTIONS = 100_000
#: CPU seconds that reading a file may take: 60, and one for each MB. Real exports are read at 50 MB/s and more.
SECONDS = 60
SECONDS_PER_BYTE = 1e-6
#: Minimum bytes of a row in SQLite. A table with more rows than fit has pages that contain each other: a small file
#: that would fill the memory.
MIN_ROW = 6
#: Errors that damage raises; SQLite's error messages may quote a schema that is not UTF-8.
DAMAGE = (sqlite3.Error, UnicodeDecodeError)
#: A number that is stored as text has fewer characters.
MAX_NUMBER = 40
#: A row with a larger value is damage: SQLite would load it whole (needs Python 3.11).
MAX_VALUE = 64 << 20
#: Texts are cut to this many characters: more than the longest template names seen (16,000).
MAX_TEXT = 20_000


class NsysTables:
    """An export, opened for reading; ``lost`` says what is damaged, ``cut`` is the first of it that loses rows.

    Args:
        path: The SQLite file.
        seconds: Maximum CPU time of reading; by default it depends on the size of the file.

    Raises:
        TraceError: it is not an SQLite database, or its schema is damaged.
    """

    def __init__(self, path: Path, seconds: float | None = None) -> None:
        self.path = path
        self.lost: list[str] = []
        self.cut: str | None = None
        size = path.stat().st_size
        self._max_rows = size // MIN_ROW
        self._seconds = SECONDS + SECONDS_PER_BYTE * size if seconds is None else seconds
        self._began = time.thread_time()
        self._columns: dict[str, frozenset[str]] = {}
        try:
            # Immutable: nothing is written next to the file, journals are ignored, no lock is taken.
            self._database = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
        except DAMAGE as error:
            raise TraceError(f"{path} cannot be opened as SQLite: {error}") from None
        try:
            if sys.version_info >= (3, 11):
                self._database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE)
            self._database.set_progress_handler(self._is_late, INSTRUCTIONS)
            # Its schema must not call functions, its cells are checked before use, and its text need not be UTF-8.
            # Extensions cannot be loaded by default.
            for pragma in ("trusted_schema = off", "query_only = on", "cell_size_check = on", "mmap_size = 0"):
                self._database.execute(f"pragma {pragma}")
            self._database.text_factory = lambda raw: raw.decode("utf-8", "replace")
            # Only tables that store rows have a root page: views and virtual tables have none.
            found = self._database.execute("select name from sqlite_master where type = 'table' and rootpage > 0")
            self.names = tuple(name for (name,) in found if isinstance(name, str) and '"' not in name)
        except DAMAGE as error:
            self._database.close()
            raise self._damaged(error) from None
        for ending, journal in (("-wal", "a write-ahead log"), ("-journal", "a journal")):
            file = path.with_name(path.name + ending)
            if file.exists() and file.stat().st_size:
                self._report_cut(
                    f"there is {journal} next to {path.name}: its writer had not finished, and rows that are only"
                    " there are not read; export the report again"
                )

    def __enter__(self) -> NsysTables:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._database.close()

    def has(self, table: str, *columns: str) -> bool:
        """Whether the export has this table with these columns."""
        if table not in self._columns:
            known = table in self.names
            # Does not list columns that are computed when read.
            rows = self._all(f'pragma table_info("{table}")') if known else []
            self._columns[table] = frozenset(str(row[1]) for row in rows)
        return bool(self._columns[table]) and self._columns[table].issuperset(columns)

    def has_row_ids(self, table: str) -> bool:
        """Whether rows of this table can be found again by their row id."""
        try:
            self._database.execute(f'select rowid from "{table}" limit 1')
        except DAMAGE:
            return False
        return True

    def integers(self, table: str, columns: Mapping[str, int], where: str = "") -> Iterator[dict[str, Ints]]:
        """Blocks of columns as int64; a value that is not an integer becomes the column's default.

        Rows come in the order of the file. Damage ends the table, and is reported in ``lost``.

        Args:
            table: The table; it may be absent.
            columns: Names of columns, with the default for a missing value and for a missing column.
            where: An SQL condition, with ``where``.
        """
        defaults = list(columns.values())
        selected = ", ".join(self._expression(table, name, default) for name, default in columns.items())
        parts: list[Ints] = []
        for batch in self._batches(table, f'select {selected} from "{table}" {where}'):
            parts.append(_matrix(batch, defaults))
            if len(parts) == BATCHES:
                yield _block(parts, columns)
                parts = []
        if parts:
            yield _block(parts, columns)

    def values(self, table: str, *columns: str, where: str = "") -> Iterator[tuple[Any, ...]]:
        """Rows of a table, text cut to 20,000 characters; None for a missing column, and for a blob."""
        chosen = ", ".join(self._expression(table, name, "null", MAX_TEXT) for name in columns)
        for batch in self._batches(table, f'select {chosen} from "{table}" {where}'):
            yield from batch

    def rows(self, table: str, ids: list[int], *columns: str) -> Iterator[tuple[Any, ...]]:
        """The rows with these row ids, in this order; all None for a missing row."""
        chosen = ", ".join(self._expression(table, name, "null", MAX_TEXT) for name in columns)
        query = f'select {chosen} from "{table}" where rowid = ?'
        for row_id in ids:
            yield next(iter(self._all(query, row_id)), (None,) * len(columns))

    # -- SQLite -------------------------------------------------------------------------------------------

    def _expression(self, table: str, name: str, default: int | str, longest: int = MAX_NUMBER) -> str:
        """SQL of a column's value: its number or the beginning of its text, else the default."""
        if name == "rowid":
            return "rowid" if self.has_row_ids(table) else str(default)
        if not self.has(table, name):
            return str(default)
        # No export has blobs in columns that are read, and one can fill the memory: its type is known without it.
        return (
            f'case typeof("{name}") when \'integer\' then "{name}" when \'real\' then "{name}"'
            f" when 'text' then substr(\"{name}\", 1, {longest}) else {default} end"
        )

    def _batches(self, table: str, query: str) -> Iterator[list[tuple[Any, ...]]]:
        if not self.has(table):
            return
        done = 0
        try:
            cursor = self._database.execute(query)
            while batch := cursor.fetchmany(BATCH):
                done += len(batch)
                if done > self._max_rows:
                    raise TraceError(
                        f"{self.path} is damaged: its table {table} has more rows than fit into the file; export it"
                        " again from the .nsys-rep"
                    )
                yield batch
        except DAMAGE as error:
            if self._is_late():
                raise self._damaged(error) from None
            self._report_cut(f"the table {table} is damaged ({error}): {done} rows of it could be read")

    def _report_cut(self, sentence: str) -> None:
        self.lost.append(sentence)
        self.cut = self.cut or sentence

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
        # Python 3.10 has an error without words there.
        reason = "its schema is not text" if isinstance(error, UnicodeDecodeError) or not str(error) else error
        return TraceError(f"{self.path} is a damaged SQLite file ({reason}); export it again from the .nsys-rep")


def _block(parts: list[Ints], columns: Mapping[str, int]) -> dict[str, Ints]:
    return dict(zip(columns, np.ascontiguousarray(np.concatenate(parts).T), strict=True))


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


def recode(values: Ints, code: Callable[[int], int]) -> Ints:
    """Each value replaced by its code; ``code`` is called once for each distinct value."""
    if not values.size:
        return values
    low = int(values.min())
    span = int(values.max()) - low + 1
    if span > 4 * values.size + 1024:
        unique, place = np.unique(values, return_inverse=True)
        return np.array([code(one) for one in unique.tolist()], np.int64)[place]
    # The values are close together, as ids mostly are: a table of the whole span is faster than sorting.
    at = values - low
    table = np.zeros(span, np.int64)
    table[at] = 1
    found = np.flatnonzero(table)
    table[found] = [code(one + low) for one in found.tolist()]
    return np.asarray(table[at], np.int64)
