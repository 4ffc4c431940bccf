"""Writing a run folder: never half a file, never into another launch's folder.

Files that are rewritten are written beside and renamed; rows are appended as whole lines.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from perfkit import _env
from perfkit.errors import UsageError
from perfkit.run.records import Lines, Phases, RangeRow, Rank, Run, Step, Syncs

if TYPE_CHECKING:
    from typing import BinaryIO

#: Rows after which the older half of steps.jsonl is merged pairwise (DESIGN section 3): 8 MB of text, and
#: still 10,000 rows of detail for the newest steps of a month-long run.
MAX_ROWS = 20_000

_ENCODER = msgspec.json.Encoder()


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file beside its place and rename it there, so that a reader sees the old or the new, never half."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        beside.write_bytes(data)
        os.replace(beside, path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise


_runs_of_this_process = itertools.count()


def launch_id() -> str:
    """One word for a new run of this launch, the same on all its ranks where torchrun started them.

    A process may record several runs one after the other; each rank counts its own, and so alike.
    """
    number = next(_runs_of_this_process)
    run_id = os.environ.get("TORCHELASTIC_RUN_ID")
    if run_id is None:
        return uuid.uuid4().hex[:12]
    parts = (run_id, os.environ.get("MASTER_PORT"), os.environ.get("TORCHELASTIC_RESTART_COUNT"), number or None)
    return re.sub(r"[^\w.-]+", "-", "-".join(str(part) for part in parts if part is not None))


def default_folder(launch: str) -> Path:
    """``runs/<script>-<date>-<time>``; with several ranks the launch id stands for the time, so that all agree."""
    main = getattr(sys.modules.get("__main__"), "__file__", None) or sys.argv[0] or "run"
    script = Path(main).stem
    if script == "__main__":
        script = Path(main).parent.name
    script = re.sub(r"[^\w.-]+", "-", script) or "run"
    when = launch if _env.world_size() > 1 else time.strftime("%Y%m%d-%H%M%S")
    return Path("runs") / f"{script}-{when}"


def _launches_in(folder: Path) -> set[str]:
    found = set()
    for file in (folder / "run.json", *folder.glob("rank-*/rank.json")):
        try:
            record = msgspec.json.decode(file.read_bytes())
        except FileNotFoundError:
            continue
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            # Damaged, but somebody's: never written over.
            found.add("?")
            continue
        found.add(str(record.get("launch_id")) if isinstance(record, dict) else "?")
    return found


def check_folder(path: Path) -> None:
    """Refuse a path that no run can be recorded into, before anything is started.

    Raises:
        UsageError: the path, or what it should lie in, is a file or cannot be written to.
    """
    existing = next(place for place in (path.absolute(), *path.absolute().parents) if place.exists())
    if not existing.is_dir():
        raise UsageError(f"a run is recorded into a folder, but {existing} is a file: name another")
    if not os.access(existing, os.W_OK):
        raise UsageError(f"the run folder {path} cannot be made: {existing} cannot be written to; name another")


def claim_folder(path: Path, launch: str, *, overwrite: bool) -> Path:
    """Choose the folder of this launch: ``path``, or ``path-2``... where another launch's run lies.

    Every rank decides alone and alike, because what it looks at (other launches) is the same for all.

    Raises:
        UsageError: see `check_folder`.
    """
    check_folder(path)
    chosen, number = path, 1
    while _launches_in(chosen) - {launch}:
        if overwrite:
            _clear(chosen)
            break
        number += 1
        chosen = path.with_name(f"{path.name}-{number}")
    try:
        chosen.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"the run folder {chosen} cannot be created ({error.strerror}): name another") from error
    return chosen


def _clear(folder: Path) -> None:
    """Remove what perfkit wrote into a folder, and nothing else."""
    for rank in folder.glob("rank-*"):
        shutil.rmtree(rank)
    for name in ("run.json", "diagnosis.json", "report.html"):
        (folder / name).unlink(missing_ok=True)


def write_run(folder: Path, run: Run) -> None:
    """Write run.json (rank 0's task)."""
    write_atomically(folder / "run.json", _pretty(run))


def _pretty(record: msgspec.Struct) -> bytes:
    return msgspec.json.format(_ENCODER.encode(record), indent=2)


class RankWriter:
    """Writes one rank's part of a run folder."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.folder = folder / f"rank-{rank}"
        self.folder.mkdir(parents=True, exist_ok=True)
        self._steps: BinaryIO | None = None
        self._rows = 0

    def append_steps(self, rows: Sequence[Step]) -> None:
        """Append rows to steps.jsonl and hand them to the system, so that a kill loses none of them."""
        if not rows:
            return
        if self._steps is None:
            self._steps = (self.folder / "steps.jsonl").open("ab")
        self._steps.write(_ENCODER.encode_lines(rows))
        self._steps.flush()
        self._rows += len(rows)
        if self._rows >= MAX_ROWS:
            self._thin_out()

    def _thin_out(self) -> None:
        """Merge the older half of the rows pairwise, beside, then rename: bounded for a month-long run."""
        path = self.folder / "steps.jsonl"
        rows = msgspec.json.Decoder(Step).decode_lines(path.read_bytes())
        half = len(rows) // 2
        merged = merge_pairwise(rows[:half]) + rows[half:]
        assert self._steps is not None
        self._steps.close()
        write_atomically(path, _ENCODER.encode_lines(merged))
        self._steps = path.open("ab")
        self._rows = len(merged)

    def write_rank(self, rank: Rank) -> None:
        """Rewrite rank.json."""
        write_atomically(self.folder / "rank.json", _pretty(rank))

    def write_syncs(self, syncs: Syncs) -> None:
        """Rewrite syncs.json."""
        write_atomically(self.folder / "syncs.json", _pretty(syncs))

    def write_lines(self, lines: Lines) -> None:
        """Rewrite lines.json."""
        write_atomically(self.folder / "lines.json", _pretty(lines))

    def write_ranges(self, rows: Sequence[RangeRow]) -> None:
        """Rewrite ranges.npz: arrays only, no pickle."""
        if not rows:
            return
        import io

        import numpy

        buffer = io.BytesIO()
        numpy.savez_compressed(
            buffer,
            name=numpy.array([row.name for row in rows]),
            category=numpy.array([row.category for row in rows]),
            domain=numpy.array([row.domain for row in rows]),
            thread=numpy.array([row.thread for row in rows]),
            count=numpy.array([row.count for row in rows], dtype=numpy.int64),
            total_ns=numpy.array([row.total_ns for row in rows], dtype=numpy.int64),
            self_ns=numpy.array([row.self_ns for row in rows], dtype=numpy.int64),
            min_ns=numpy.array([row.min_ns for row in rows], dtype=numpy.int64),
            max_ns=numpy.array([row.max_ns for row in rows], dtype=numpy.int64),
            hist=numpy.array([row.hist for row in rows], dtype=numpy.int64).reshape(len(rows), 64),
            # Not measured is -1: an array has no null.
            device_count=numpy.array([_or_minus_one(row.device_count) for row in rows], dtype=numpy.int64),
            device_ns=numpy.array([_or_minus_one(row.device_ns) for row in rows], dtype=numpy.int64),
        )
        write_atomically(self.folder / "ranges.npz", buffer.getvalue())

    def window_file(self, index: int) -> Path:
        """Where window ``index``'s trace goes; the ending is the one that older tools look for."""
        return self.folder / f"window-{index}.pt.trace.json.gz"

    def memory_file(self, index: int) -> Path:
        """Where window ``index``'s snapshot of device memory goes."""
        return self.folder / f"memory-{index}.pickle"

    def close(self) -> None:
        """Close steps.jsonl."""
        if self._steps is not None:
            self._steps.close()
            self._steps = None


def _or_minus_one(value: int | None) -> int:
    return -1 if value is None else value


def merge_pairwise(rows: Sequence[Step]) -> list[Step]:
    """Merge neighbouring rows of the same kind into one: sums, ``steps`` added; others stay as they are."""
    merged: list[Step] = []
    waiting: Step | None = None
    for row in rows:
        if waiting is None:
            waiting = row
        elif (waiting.mode, waiting.window, waiting.dry) == (row.mode, row.window, row.dry):
            merged.append(_merge(waiting, row))
            waiting = None
        else:
            merged.append(waiting)
            waiting = row
    if waiting is not None:
        merged.append(waiting)
    return merged


def _sum(*values: int | None) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _merge(first: Step, second: Step) -> Step:
    def phases(one: Phases | None, other: Phases | None) -> Phases | None:
        if one is None or other is None:
            return one or other
        return Phases(**{name: _sum(getattr(one, name), getattr(other, name)) for name in Phases.__struct_fields__})

    return Step(
        step=first.step,
        steps=first.steps + second.steps,
        mode=first.mode,
        start_ns=first.start_ns,
        wall_ns=first.wall_ns + second.wall_ns,
        phases_ns=phases(first.phases_ns, second.phases_ns) or Phases(),
        device_phases_ns=phases(first.device_phases_ns, second.device_phases_ns),
        device_busy_ns=_sum(first.device_busy_ns, second.device_busy_ns),
        samples=_sum(first.samples, second.samples),
        tokens=_sum(first.tokens, second.tokens),
        # A level, not an amount: the higher of the two is what matters.
        memory_bytes=max((m for m in (first.memory_bytes, second.memory_bytes) if m is not None), default=None),
        memory_peak_bytes=max((p for p in (first.memory_peak_bytes, second.memory_peak_bytes) if p), default=None),
        rss_bytes=max((r for r in (first.rss_bytes, second.rss_bytes) if r is not None), default=None),
        alloc_retries=_sum(first.alloc_retries, second.alloc_retries),
        device_allocs=_sum(first.device_allocs, second.device_allocs),
        syncs=_sum(first.syncs, second.syncs),
        recompiles=_sum(first.recompiles, second.recompiles),
        gc_ns=_sum(first.gc_ns, second.gc_ns),
        window=first.window,
        dry=first.dry,
    )
