"""Reading a run folder, also one that is still being written, and one that nobody should trust.

What is missing or damaged is said in ``lost`` and the rest is read. Nothing is unpickled.
"""

from __future__ import annotations

import re
import zipfile
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import msgspec

from perfkit.errors import RunError
from perfkit.run.records import SCHEMA, Lines, RangeRow, Rank, Run, Step, Syncs, Window

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
        schema = msgspec.json.decode(data, type=_Versioned).schema
    except (msgspec.DecodeError, UnicodeDecodeError):
        schema = SCHEMA
    if schema > SCHEMA:
        raise RunError(
            f"{path} has schema {schema}, this perfkit reads up to {SCHEMA}: "
            "read it with the perfkit that wrote it, or a newer one"
        )
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        lost.append(f"{path.parent.name}/{path.name}: damaged ({error})")
        return None


class _Versioned(msgspec.Struct):
    schema: int = SCHEMA


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
        path = self.folder / "ranges.npz"
        if not path.is_file():
            return ()
        import numpy

        try:
            with numpy.load(path, allow_pickle=False) as arrays:
                # A file written before there were device times has no such columns.
                fields = [name for name in RangeRow.__struct_fields__ if name in arrays or "device" not in name]
                columns = {name: arrays[name].tolist() for name in fields}
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
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
        """The window traces that lie in the folder, in order of their windows."""
        found = []
        for path in self.folder.glob("window-*.pt.trace.json*"):
            match = re.fullmatch(r"window-(\d+)\.pt\.trace\.json(\.gz)?", path.name)
            if match and path.is_file() and not path.is_symlink():
                found.append((int(match.group(1)), path))
        return tuple(path for _, path in sorted(found))

    def window(self, path: Path) -> Window | None:
        """What rank.json says of a window's trace."""
        for window in self.rank.windows if self.rank is not None else ():
            if window.file == path.name:
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
