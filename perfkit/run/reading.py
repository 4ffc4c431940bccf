"""Reading a run folder, also one that is still being written, and one from an untrusted source.

Missing and damaged parts are listed in ``lost``, and the rest is read. Nothing is unpickled.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from perfkit._regular_file import open_regular, read_regular
from perfkit._text import printable
from perfkit._versioned_json import MAX_JSON_BYTES, decode_json, decode_versioned
from perfkit.errors import RunError
from perfkit.run.arrays import Spans, read_range_rows, read_spans
from perfkit.run.ending import unwritten_end
from perfkit.run.file_names import nsys_name, peak_record_path, spans_name
from perfkit.run.older_folders import converted
from perfkit.run.records import (
    SCHEMA,
    SWEEP_SCHEMA,
    TRIAL_SCHEMA,
    AppliedChanges,
    Lines,
    MachineLimits,
    MemorySteps,
    RangeRow,
    Rank,
    Run,
    Step,
    Sweep,
    Syncs,
    Trial,
    Window,
)
from perfkit.run.step_file import StepsRead, read_some_steps, read_steps

#: A run writes 18,000 rows, 7 MB; those of older versions have a row per step, here for 10 million.
MAX_STEPS_BYTES = 4 * 2**30

_Record = TypeVar("_Record", bound=msgspec.Struct)


def matching(folder: Path, pattern: str) -> list[Path]:
    """What matches in a folder; nothing where it is moved or removed meanwhile, for which ``Path.glob`` raises."""
    try:
        return list(folder.glob(pattern))
    except FileNotFoundError:
        return []


def is_run_folder(path: Path) -> bool:
    """Whether a folder holds a run, also one that has only begun."""
    # Not is_dir(), which raises for a name that no file system takes.
    return os.path.isdir(path) and (
        (path / "run.json").is_file() or any(os.path.isdir(one) for one in matching(path, "rank-*"))
    )


def rank_folders(path: Path) -> dict[int, Path]:
    """The ranks' folders in a run's, by rank."""
    found = {}
    for folder in matching(path, "rank-*"):
        match = re.fullmatch(r"rank-(\d{1,7})", folder.name)
        if match and folder.is_dir() and not folder.is_symlink():
            found[int(match[1])] = folder
    return dict(sorted(found.items()))


def _decode(path: Path, kind: type[_Record], lost: list[str]) -> _Record | None:
    name = f"{path.parent.name}/{path.name}"
    try:
        data = read_regular(path, MAX_JSON_BYTES, inside=path.parent)
    except FileNotFoundError:
        return None
    except OSError as error:
        lost.append(f"{name}: {error.strerror}")
        return None
    try:
        schema = decode_json(data, _RecordVersion).schema
    except msgspec.DecodeError:
        schema = SCHEMA  # damaged: decoding it below reports that
    if schema > SCHEMA:
        raise RunError(
            f"{path} has schema {schema}, this perfkit reads up to {SCHEMA}: "
            "read it with the version of perfkit that wrote it, or a newer one"
        )
    try:
        return decode_json(data, kind) if schema >= SCHEMA else msgspec.convert(converted(data, kind), type=kind)
    except msgspec.DecodeError as error:
        lost.append(f"{name}: damaged ({error})")
        return None


class _RecordVersion(msgspec.Struct):
    #: Version 1 did not write it into every file.
    schema: int = 1


def read_run_record(path: Path, lost: list[str]) -> Run | None:
    """run.json of a run folder; None: missing, or damaged, which is added to ``lost``.

    Raises:
        RunError: a newer perfkit wrote it.
    """
    return _decode(path / "run.json", Run, lost)


class RankFolder:
    """One rank's part of a run; each file is read at first use."""

    def __init__(self, folder: Path, index: int) -> None:
        self.folder = folder
        self.index = index
        self.lost: list[str] = []

    @cached_property
    def rank(self) -> Rank | None:
        """rank.json; None: missing or damaged."""
        return _decode(self.folder / "rank.json", Rank, self.lost)

    @cached_property
    def steps(self) -> list[Step]:
        """The rows of steps.jsonl, see `perfkit.run.step_file.read_steps`."""
        return self._steps(read_steps)

    def some_steps(self, max_bytes: int) -> list[Step]:
        """Rows of steps.jsonl from all parts of it, see `perfkit.run.step_file.read_some_steps`."""
        return self._steps(lambda file: read_some_steps(file, max_bytes))

    def _steps(self, read: Callable[[BinaryIO], StepsRead]) -> list[Step]:
        try:
            with open_regular(self.folder / "steps.jsonl", inside=self.folder, max_bytes=MAX_STEPS_BYTES) as file:
                found = read(file)
        except FileNotFoundError:
            return []
        except OSError as error:
            self.lost.append(f"steps.jsonl: {error.strerror}")
            return []
        if found.damaged:
            self.lost.append(f"steps.jsonl: {found.damaged} of {found.lines} rows are damaged and were skipped")
        return found.rows

    @cached_property
    def syncs(self) -> Syncs | None:
        """syncs.json; None: syncs were not detected, or the file is damaged."""
        return _decode(self.folder / "syncs.json", Syncs, self.lost)

    @cached_property
    def lines(self) -> Lines | None:
        """lines.json; None: nothing was sampled, or the file is damaged."""
        return _decode(self.folder / "lines.json", Lines, self.lost)

    @cached_property
    def changes(self) -> AppliedChanges | None:
        """changes.json; None: no change was applied to the program, or the file is damaged."""
        return _decode(self.folder / "changes.json", AppliedChanges, self.lost)

    @property
    def has_program(self) -> bool:
        """Whether it has the lines of a whole program, in which no step was seen."""
        return self.rank is not None and self.rank.program is not None and bool(self.lines and self.lines.rows)

    @cached_property
    def limits(self) -> MachineLimits | None:
        """limits.json; None: this rank did not write it, or it is damaged."""
        return _decode(self.folder / "limits.json", MachineLimits, self.lost)

    @cached_property
    def ranges(self) -> tuple[RangeRow, ...]:
        """The rows of ranges.npz."""
        return read_range_rows(self.folder / "ranges.npz", self.lost)

    @cached_property
    def windows(self) -> tuple[Path, ...]:
        """The traces of windows in the folder, of Kineto or of nsys, in order of their windows."""
        return self._traces("window")

    @cached_property
    def stacks(self) -> tuple[Path, ...]:
        """The traces of the steps recorded with stacks, in order of the windows they follow."""
        return self._traces("stacks")

    @cached_property
    def snapshots(self) -> tuple[Path, ...]:
        """The snapshots of device memory, in order of their windows."""
        return self._numbered(r"memory-(\d{1,9})\.pickle")

    @cached_property
    def peaks(self) -> tuple[Path, ...]:
        """The traces of steps that were recorded for memory."""
        return self._traces("peak")

    def memory_steps(self, path: Path) -> MemorySteps | None:
        """The record next to such a trace; None: missing or damaged."""
        return _decode(peak_record_path(path), MemorySteps, self.lost)

    def _traces(self, what: str) -> tuple[Path, ...]:
        return self._numbered(rf"{what}-(\d{{1,9}})\.(pt\.trace\.json(\.gz)?|sqlite)")

    def _numbered(self, name: str) -> tuple[Path, ...]:
        """The files with such a name, in order of the number in it."""
        found = []
        for path in matching(self.folder, "*"):
            match = re.fullmatch(name, path.name)
            if match and path.is_file() and not path.is_symlink():
                found.append((int(match[1]), path))
            elif match:
                self.lost.append(f"{path.name}: it is a link, a pipe or a device, not read")
        return tuple(path for _, path in sorted(found))

    def spans(self, window: int) -> Spans | None:
        """Each run of a range in a window; None where that was not recorded."""
        return read_spans(self.folder / spans_name(window), self.lost)

    def window(self, path: Path) -> Window | None:
        """The record of a window's trace in rank.json."""
        for window in self.rank.windows if self.rank is not None else ():
            if window.file == path.name or path.name == nsys_name(window.index):
                return window
        return None


class RunFolder:
    """A run folder, opened for reading."""

    def __init__(self, path: Path, run: Run | None, ranks: dict[int, RankFolder], lost: list[str]) -> None:
        self.path = path
        self.run = run
        self.ranks = ranks
        self._lost = lost

    @property
    def lost(self) -> list[str]:
        """What was damaged in the files read so far, one sentence each."""
        return [*self._lost, *(sentence for rank in self.ranks.values() for sentence in rank.lost)]

    @cached_property
    def trial(self) -> Trial | None:
        """trial.json; None: no change was tried, or the file is damaged or of another version."""
        return self._measured("trial.json", Trial, TRIAL_SCHEMA, "perfkit try")

    @cached_property
    def sweep(self) -> Sweep | None:
        """sweep.json; None: no values were compared, or the file is damaged or of another version."""
        return self._measured("sweep.json", Sweep, SWEEP_SCHEMA, "perfkit try --sweep")

    def _measured(self, name: str, kind: type[_Record], schema: int, command: str) -> _Record | None:
        try:
            data = read_regular(self.path / name, MAX_JSON_BYTES, inside=self.path)
            return decode_versioned(data, kind, schema, name, f"{command} measures it again")
        except FileNotFoundError:
            return None
        except OSError as error:
            self._lost.append(f"{name}: {error.strerror}")
        except RunError as error:
            self._lost.append(str(error))
        return None

    @property
    def missing_ranks(self) -> list[int]:
        """Ranks of the launch that wrote nothing into this folder."""
        size = self.run.world_size if self.run is not None else len(self.ranks)
        return [index for index in range(size) if index not in self.ranks]

    def __repr__(self) -> str:
        return printable(f"<run {self.path}: {len(self.ranks)} rank(s)>")


def command_of(path: Path) -> tuple[str, ...]:
    """The command that a run folder was recorded of; empty where that is not known. Reads no other record."""
    try:
        run = _decode(path / "run.json", Run, [])
    except RunError:  # a newer perfkit wrote it
        return ()
    return run.command if run is not None else ()


def read_run(path: Path) -> RunFolder:
    """Open a run folder.

    Raises:
        RunError: the folder is missing, holds no run or a run without any record, or a newer perfkit wrote it.
    """
    if not path.is_dir():
        raise RunError(f"{path} is not a folder: pass a run folder, as `perfkit run --out` or profile() writes it")
    lost: list[str] = []
    run = read_run_record(path, lost)
    ranks = {index: RankFolder(folder, index) for index, folder in rank_folders(path).items()}
    lost += [f"{one.name}: it is a link, not read" for one in matching(path, "rank-*") if one.is_symlink()]
    if run is None and not ranks:
        raise RunError(f"{path} holds no run (no run.json, no rank-0): pass a folder that `perfkit run` wrote")
    if not any(rank.steps or rank.windows or rank.syncs or rank.has_program for rank in ranks.values()):
        if refused := "; ".join([*lost, *(sentence for rank in ranks.values() for sentence in rank.lost)]):
            raise RunError(f"{path} holds an empty run: nothing of it can be read ({refused})")
        ends = (unwritten_end(rank.rank, rank.folder) for rank in ranks.values() if rank.rank is not None)
        cause = next(
            filter(None, ends), "Was the loop reached, and does it use a DataLoader, an optimizer, or steps()?"
        )
        raise RunError(f"{path} holds an empty run: no step was recorded. {cause[0].upper()}{cause[1:]}")
    return RunFolder(path, run, ranks, lost)
