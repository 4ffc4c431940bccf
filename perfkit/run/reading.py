"""Reading a run folder, also one that is still being written, and one that nobody should trust.

What is missing or damaged is said in ``lost`` and the rest is read. Nothing is unpickled.
"""

from __future__ import annotations

import re
import zipfile
import zlib
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from perfkit.errors import RunError
from perfkit.run.file_names import lines_beside, nsys_name, spans_name
from perfkit.run.older_folders import converted
from perfkit.run.records import SCHEMA, Lines, RangeRow, RangeSpan, Rank, Run, Step, Syncs, UserCode, Window

_Record = TypeVar("_Record", bound=msgspec.Struct)

#: No record file of a run comes near this (20,000 step rows are 8 MB): a larger one is not ours.
_MAX_BYTES = 256 * 2**20


def is_run_folder(path: Path) -> bool:
    """Whether a folder holds a run, or the beginning of one."""
    return path.is_dir() and ((path / "run.json").is_file() or any(path.glob("rank-*/")))


def _decode(path: Path, kind: type[_Record], lost: list[str]) -> _Record | None:
    try:
        if path.stat().st_size > _MAX_BYTES:
            lost.append(f"{path.name}: larger than {_MAX_BYTES >> 20} MiB, not read")
            return None
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        lost.append(f"{path.name}: {error.strerror}")
        return None
    try:
        schema = msgspec.json.decode(data, type=_RecordVersion).schema
    except (msgspec.DecodeError, UnicodeDecodeError):
        schema = SCHEMA  # damaged, which decoding reports
    if schema > SCHEMA:
        raise RunError(
            f"{path} has schema {schema}, this perfkit reads up to {SCHEMA}: "
            "read it with the perfkit that wrote it, or a newer one"
        )
    try:
        if schema < SCHEMA:
            return msgspec.convert(converted(data, kind), type=kind)
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        lost.append(f"{path.parent.name}/{path.name}: damaged ({error})")
        return None


class _RecordVersion(msgspec.Struct):
    #: Version 1 did not write it into every file.
    schema: int = 1


class Spans(NamedTuple):
    """Each time a range ran in a window, and how many more there were."""

    rows: tuple[RangeSpan, ...]
    dropped: int


class LineTimes(NamedTuple):
    """When a thread came to which line of the user's, in a step for lines.

    ``time_ns`` (int64, unix time, rising), ``code`` (an index into ``codes``), ``line`` and ``depth`` (calls of the
    user's functions that are open, this one included; 0: none, the line was left) belong together.
    ``files`` are all files of the user's: what torch's Python frames call them -> where they lie. Where the thread was
    not followed to the end of the step, which had too many lines, this is not ``complete``.
    """

    thread: int
    codes: tuple[UserCode, ...]
    files: dict[str, str]
    time_ns: Any
    code: Any
    line: Any
    depth: Any
    complete: bool


def _arrays(path: Path, lost: list[str]) -> dict[str, Any] | None:
    """The arrays of an npz file, None where it is missing or damaged. No pickle, and no more than `_MAX_BYTES`."""
    if not path.is_file() or path.is_symlink():
        return None
    import numpy

    try:
        with zipfile.ZipFile(path) as packed:
            if sum(entry.file_size for entry in packed.infolist()) > _MAX_BYTES:
                lost.append(f"{path.name}: larger than {_MAX_BYTES >> 20} MiB, not read")
                return None
        with numpy.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        lost.append(f"{path.name}: damaged ({error})")
        return None


def read_line_times(stacks: Path, lost: list[str]) -> LineTimes | None:
    """The times of lines beside the trace of such a step, None where there are none; ``lost`` is told of damage."""
    path = lines_beside(stacks)
    arrays = _arrays(path, lost)
    if arrays is None:
        return None
    try:
        codes = msgspec.json.decode(str(arrays["codes"]), type=tuple[UserCode, ...])
        files = msgspec.json.decode(str(arrays["files"]), type=dict[str, str])
        columns = {name: arrays[name] for name in ("time_ns", "code", "line", "depth")}
        complete = bool(arrays["complete"])
        found = LineTimes(thread=int(arrays["thread"]), codes=codes, files=files, complete=complete, **columns)
        sizes = {column.shape for column in columns.values()}
        if len(sizes) != 1 or len(sizes.pop()) != 1 or any(c.dtype.kind != "i" for c in columns.values()):
            raise ValueError("its columns do not belong together")
        if found.code.size and not 0 <= found.code.min() <= found.code.max() < len(codes):
            raise ValueError("it names functions that it does not hold")
    except (KeyError, TypeError, ValueError, msgspec.MsgspecError) as error:
        lost.append(f"{path.name}: damaged ({error})")
        return None
    return found


class RankFolder:
    """One rank's part of a run; files are read when asked for."""

    def __init__(self, folder: Path, index: int) -> None:
        self.folder = folder
        self.index = index
        self.lost: list[str] = []

    @cached_property
    def rank(self) -> Rank | None:
        """rank.json, None where it is missing or damaged."""
        return _decode(self.folder / "rank.json", Rank, self.lost)

    @cached_property
    def steps(self) -> list[Step]:
        """The rows of steps.jsonl; a half-written last line is left for the next reader."""
        path = self.folder / "steps.jsonl"
        try:
            data = path.read_bytes() if path.stat().st_size <= _MAX_BYTES else b""
        except OSError:
            return []
        rows: list[Step] = []
        damaged = 0
        decoder = msgspec.json.Decoder(Step)
        lines = data.split(b"\n")
        for line in lines[:-1]:  # after the last newline: nothing, or a row that is being written
            try:
                rows.append(decoder.decode(line))
            except (msgspec.DecodeError, UnicodeDecodeError):
                damaged += 1
        if damaged:
            self.lost.append(f"steps.jsonl: {damaged} of {len(lines) - 1} rows damaged and left out")
        return rows

    @cached_property
    def syncs(self) -> Syncs | None:
        """syncs.json, None where syncs were not asked for."""
        return _decode(self.folder / "syncs.json", Syncs, self.lost)

    @cached_property
    def lines(self) -> Lines | None:
        """lines.json, None where nothing was sampled."""
        return _decode(self.folder / "lines.json", Lines, self.lost)

    @cached_property
    def ranges(self) -> tuple[RangeRow, ...]:
        """The rows of ranges.npz."""
        arrays = _arrays(self.folder / "ranges.npz", self.lost)
        if arrays is None:
            return ()
        # A file written before there were device times has no such columns.
        fields = [name for name in RangeRow.__struct_fields__ if name in arrays or "device" not in name]
        try:
            columns = {name: arrays[name].tolist() for name in fields}
        except KeyError as error:
            self.lost.append(f"ranges.npz: damaged ({error})")
            return ()
        for name in set(fields) & {"device_count", "device_ns"}:
            columns[name] = [None if value == -1 else value for value in columns[name]]
        rows = zip(*columns.values(), strict=False)
        try:
            return tuple(msgspec.convert(dict(zip(fields, row, strict=True)), RangeRow) for row in rows)
        except msgspec.ValidationError as error:
            self.lost.append(f"ranges.npz: damaged ({error})")
            return ()

    @cached_property
    def windows(self) -> tuple[Path, ...]:
        """The window traces that lie in the folder, of Kineto or of nsys, in order of their windows."""
        return self._traces("window")

    @cached_property
    def stacks(self) -> tuple[Path, ...]:
        """The traces of the steps for lines, in order of the windows they follow."""
        return self._traces("stacks")

    def _traces(self, what: str) -> tuple[Path, ...]:
        found = []
        for path in self.folder.glob(f"{what}-*"):
            match = re.fullmatch(rf"{what}-(\d+)\.(pt\.trace\.json(\.gz)?|sqlite)", path.name)
            if match and path.is_file() and not path.is_symlink():
                found.append((int(match.group(1)), path))
        return tuple(path for _, path in sorted(found))

    def spans(self, window: int) -> Spans | None:
        """Each time a range ran in a window; None where that was not recorded."""
        path = self.folder / spans_name(window)
        arrays = _arrays(path, self.lost)
        if arrays is None:
            return None
        try:
            columns = {name: arrays[name].tolist() for name in ("range", "thread", "start_ns", "end_ns", "depth")}
            tables = {name: arrays[name].tolist() for name in ("names", "categories", "domains", "threads")}
            dropped = int(arrays["dropped"])
            rows = [
                {
                    "name": tables["names"][code],
                    "category": tables["categories"][code],
                    "domain": tables["domains"][code],
                    "thread": tables["threads"][thread],
                    "start_ns": start,
                    "end_ns": None if end == -1 else end,
                    "depth": depth,
                }
                for code, thread, start, end, depth in zip(*columns.values(), strict=True)
            ]
            return Spans(tuple(msgspec.convert(rows, list[RangeSpan])), dropped)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            self.lost.append(f"{path.name}: damaged ({error})")
            return None

    def window(self, path: Path) -> Window | None:
        """What rank.json says of a window's trace."""
        for window in self.rank.windows if self.rank is not None else ():
            if window.file == path.name or path.name == nsys_name(window.index):
                return window
        return None


class RunFolder:
    """A run folder opened for reading."""

    def __init__(self, path: Path, run: Run | None, ranks: dict[int, RankFolder], lost: list[str]) -> None:
        self.path = path
        self.run = run
        self.ranks = ranks
        self._lost = lost

    @property
    def lost(self) -> list[str]:
        """What of the files opened so far was damaged."""
        return [*self._lost, *(sentence for rank in self.ranks.values() for sentence in rank.lost)]

    @property
    def missing_ranks(self) -> list[int]:
        """Ranks that the launch had and that left nothing here."""
        size = self.run.world_size if self.run is not None else len(self.ranks)
        return [index for index in range(size) if index not in self.ranks]

    def __repr__(self) -> str:
        return f"<run {self.path}: {len(self.ranks)} rank(s)>"


def read_run(path: Path) -> RunFolder:
    """Open a run folder.

    Raises:
        RunError: the folder is missing, holds no run, holds a run without a single record, or was
            written by a newer perfkit.
    """
    if not path.is_dir():
        raise RunError(f"{path} is no folder: name a run folder, as `perfkit run --out` or profile() wrote it")
    lost: list[str] = []
    run = _decode(path / "run.json", Run, lost)
    ranks = {}
    for folder in path.glob("rank-*"):
        match = re.fullmatch(r"rank-(\d+)", folder.name)
        if match and folder.is_dir() and not folder.is_symlink():
            ranks[int(match.group(1))] = RankFolder(folder, int(match.group(1)))
    if run is None and not ranks:
        raise RunError(f"{path} holds no run (no run.json, no rank-0): name a folder that `perfkit run` wrote")
    ranks = dict(sorted(ranks.items()))
    if not any(rank.steps or rank.windows or rank.syncs for rank in ranks.values()):
        raise RunError(
            f"{path} holds an empty run: no step was recorded. Was the loop reached, and does it use a DataLoader, "
            "an optimizer, or perfkit.steps()?"
        )
    return RunFolder(path, run, ranks, lost)
