"""The npz files of a rank's folder: ranges.npz, ranges-N.npz and stacks-N.lines.npz. Arrays only, nothing is pickled.

Not measured (None) is -1 there: an array has no null.
"""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from perfkit._regular_file import open_regular
from perfkit._versioned_json import decode_json
from perfkit.run.atomic import write_atomically
from perfkit.run.file_names import lines_path
from perfkit.run.records import LineTimes, RangeRow, RangeSpan, UserCode

_T = TypeVar("_T")

#: No file of records comes near this (20,000 step rows are 8 MB): a larger one is not perfkit's.
MAX_BYTES = 256 * 2**20
#: Elements of all arrays of a file. Times of lines have at most 800,000, ranges of a window 250,000; as Python objects
#: these take 600 MB.
MAX_ELEMENTS = 4_000_000

#: The fields of a `RangeSpan` that name its range, and the table of ranges-N.npz for each: names repeat.
_RANGE_TABLES = {"name": "names", "category": "categories", "domain": "domains"}


class Spans(NamedTuple):
    """Each run of a range in a window, and how many more were dropped."""

    rows: tuple[RangeSpan, ...]
    dropped: int


# -- ranges.npz


def write_range_rows(path: Path, rows: Sequence[RangeRow]) -> None:
    """Write one column per field of the rows; nothing where there are no rows."""
    if rows:
        _write(path, **{name: [getattr(row, name) for row in rows] for name in RangeRow.__struct_fields__})


def read_range_rows(path: Path, lost: list[str]) -> tuple[RangeRow, ...]:
    """Read what `write_range_rows` wrote, also before there were the columns that have a default."""
    return _decoded(path, lost, _range_rows) or ()


def _range_rows(arrays: dict[str, Any]) -> tuple[RangeRow, ...]:
    fields = [field for field in msgspec.structs.fields(RangeRow) if field.required or field.name in arrays]
    columns = [_with_none(arrays[field.name].tolist(), when=not field.required) for field in fields]
    names = [field.name for field in fields]
    return tuple(msgspec.convert(dict(zip(names, row, strict=True)), RangeRow) for row in zip(*columns, strict=False))


# -- ranges-N.npz


def write_spans(path: Path, spans: Sequence[RangeSpan], dropped: int) -> None:
    """Write each run of a range in one window; ``dropped`` is how many more there were.

    Not in ranges.npz, because that file is rewritten every 30 s and these rows never change.
    """
    keys = [tuple(getattr(span, field) for field in _RANGE_TABLES) for span in spans]
    ranges = {key: code for code, key in enumerate(dict.fromkeys(keys))}
    threads = {name: code for code, name in enumerate(dict.fromkeys(span.thread for span in spans))}
    _write(
        path,
        **{table: [key[at] for key in ranges] for at, table in enumerate(_RANGE_TABLES.values())},
        threads=[*threads],
        range=[ranges[key] for key in keys],
        thread=[threads[span.thread] for span in spans],
        **{field: [getattr(span, field) for span in spans] for field in ("start_ns", "end_ns", "depth")},
        dropped=dropped,
    )


def read_spans(path: Path, lost: list[str]) -> Spans | None:
    """Read what `write_spans` wrote; None where that was not recorded."""
    return _decoded(path, lost, _spans)


def _spans(arrays: dict[str, Any]) -> Spans:
    columns = {name: arrays[name].tolist() for name in ("range", "thread", "start_ns", "end_ns", "depth")}
    tables = {field: arrays[table].tolist() for field, table in _RANGE_TABLES.items()}
    threads = arrays["threads"].tolist()
    columns["end_ns"] = _with_none(columns["end_ns"], when=True)
    rows = [
        {"thread": threads[thread], "start_ns": start, "end_ns": end, "depth": depth}
        | {field: table[code] for field, table in tables.items()}
        for code, thread, start, end, depth in zip(*columns.values(), strict=True)
    ]
    return Spans(msgspec.convert(rows, tuple[RangeSpan, ...]), int(arrays["dropped"]))


# -- stacks-N.lines.npz


def write_line_times(path: Path, times: LineTimes) -> None:
    """Write when a thread reached which line; ``path`` is `perfkit.run.file_names.lines_path` of the trace."""
    codes, files = (msgspec.json.encode(part).decode() for part in (times.codes, times.files))
    _write(path, **times._asdict() | {"codes": codes, "files": files})


def read_line_times(stacks: Path, lost: list[str]) -> LineTimes | None:
    """The times of lines for the trace of a step with stacks, None where there are none."""
    return _decoded(lines_path(stacks), lost, _line_times)


def _line_times(arrays: dict[str, Any]) -> LineTimes:
    columns = {name: arrays[name] for name in ("time_ns", "code", "line", "depth")}
    found = LineTimes(
        thread=int(arrays["thread"]),
        codes=decode_json(str(arrays["codes"]), tuple[UserCode, ...]),
        files=decode_json(str(arrays["files"]), dict[str, str]),
        complete=bool(arrays["complete"]),
        **columns,
    )
    shapes = {column.shape for column in columns.values()}
    if len(shapes) != 1 or len(shapes.pop()) != 1 or any(column.dtype.kind != "i" for column in columns.values()):
        raise ValueError("its columns do not belong together")
    if found.code.size and not 0 <= found.code.min() <= found.code.max() < len(found.codes):
        raise ValueError("it names functions that it does not hold")
    return found


# -- npz


def _with_none(column: list[Any], *, when: bool) -> list[Any]:
    return [None if value == -1 else value for value in column] if when else column


def _write(path: Path, **columns: Any) -> None:
    """Write columns (or single values) of strings, integers and None as npz, atomically."""
    import numpy  # importing perfkit does not import numpy

    def array(values: Any) -> Any:
        if isinstance(values, list):
            values = [-1 if value is None else value for value in values]
        first = values[0] if isinstance(values, list) and values else values
        # An empty column is one of integers too; its type is never used.
        return numpy.array(values, dtype=None if isinstance(first, str | bool | numpy.ndarray) else numpy.int64)

    buffer = io.BytesIO()
    numpy.savez_compressed(buffer, **{name: array(values) for name, values in columns.items()})
    write_atomically(path, buffer.getvalue())


def _decoded(path: Path, lost: list[str], decode: Callable[[dict[str, Any]], _T]) -> _T | None:
    """A decoded npz file; None: it is missing, or damaged, which is added to ``lost``."""
    try:
        with open_regular(path, inside=path.parent) as file, zipfile.ZipFile(file) as packed:
            entries = packed.infolist()
            if sum(entry.file_size for entry in entries) > MAX_BYTES:
                raise ValueError(f"larger than {MAX_BYTES >> 20} MiB")
            if (elements := sum(_elements(packed, entry) for entry in entries)) > MAX_ELEMENTS:
                raise ValueError(f"its headers claim {elements:,} elements, no file of a run has {MAX_ELEMENTS:,}")
            return decode({entry.filename.removesuffix(".npy"): _array(packed, entry) for entry in entries})
    except FileNotFoundError:
        return None
    except Exception as error:  # noqa: BLE001 - zipfile and numpy raise some twenty types for damage
        reason = error.strerror if isinstance(error, OSError) and error.strerror else f"damaged ({error})"
        lost.append(f"{path.name}: {reason}")
        return None


def _elements(packed: zipfile.ZipFile, entry: zipfile.ZipInfo) -> int:
    """How many elements an array claims to have; numpy would make room for any number."""
    from numpy.lib import format as npy  # importing perfkit does not import numpy

    with packed.open(entry) as file:
        read_header = npy.read_array_header_1_0 if npy.read_magic(file) == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = read_header(file)
    if math.prod(shape) * dtype.itemsize > entry.file_size:
        raise ValueError(f"its header claims {math.prod(shape):,} elements, which the file does not hold")
    return math.prod(shape)


def _array(packed: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Any:
    from numpy.lib import format as npy  # importing perfkit does not import numpy

    with packed.open(entry) as file:
        return npy.read_array(file, allow_pickle=False)
