"""Writing a run folder: never half a file, never into another launch's folder.

Files that are rewritten are written beside and renamed; rows are appended as whole lines.
"""

from __future__ import annotations

import io
import itertools
import os
import re
import shutil
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from perfkit import _env
from perfkit.errors import UsageError
from perfkit.run.file_names import memory_name, trace_name
from perfkit.run.records import Failure, Lines, Phases, RangeRow, RangeSpan, Rank, Run, Step, Syncs, UserCode

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
    """One word for a new run of this launch, the same on all its ranks where the launcher can be recognised.

    ``PERFKIT_LAUNCH_ID`` says it outright; torchrun and srun have a name for a launch; under Lightning's own launcher
    all ranks of a machine are children of rank 0. A process may record several runs one after the other; each rank
    counts its own, and so alike.
    """
    number = next(_runs_of_this_process)
    launch = _launch()
    if launch is None:
        return uuid.uuid4().hex[:12]
    return re.sub(r"[^\w.-]+", "-", "-".join(str(part) for part in (*launch, number or None) if part is not None))


def _launch() -> tuple[str | int | None, ...] | None:
    env = os.environ
    if env.get("PERFKIT_LAUNCH_ID"):
        return (env["PERFKIT_LAUNCH_ID"],)
    if "TORCHELASTIC_RUN_ID" in env:
        return (env["TORCHELASTIC_RUN_ID"], env.get("MASTER_PORT"), env.get("TORCHELASTIC_RESTART_COUNT"))
    if _env.world_size() == 1:
        return None
    if "SLURM_STEP_ID" in env:
        return ("slurm", env.get("SLURM_JOB_ID"), env["SLURM_STEP_ID"])
    if "LOCAL_RANK" in env and "NODE_RANK" in env:
        # The port alone may be a fixed one, and then the next launch's too.
        first = os.getpid() if env["LOCAL_RANK"] == "0" else os.getppid()
        return ("local", env.get("MASTER_PORT"), env["NODE_RANK"], first)
    return None


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
    for name in ("run.json", "diagnosis.json", "figures.json", "report.html", "trigger"):
        (folder / name).unlink(missing_ok=True)


def write_run(folder: Path, run: Run) -> None:
    """Write run.json (rank 0's task)."""
    write_atomically(folder / "run.json", _pretty(run))


def write_failure(folder: Path, failure: Failure) -> None:
    """Write failure.json into a rank's folder."""
    write_atomically(folder / "failure.json", _pretty(failure))


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
        import numpy

        _write_arrays(
            self.folder / "ranges.npz",
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

    def window_file(self, index: int) -> Path:
        """Where window ``index``'s trace goes."""
        return self.folder / trace_name(index)

    def memory_file(self, index: int) -> Path:
        """Where window ``index``'s snapshot of device memory goes."""
        return self.folder / memory_name(index)

    def close(self) -> None:
        """Close steps.jsonl."""
        if self._steps is not None:
            self._steps.close()
            self._steps = None


def _write_arrays(path: Path, **arrays: Any) -> None:
    """Write arrays as npz, whole or not at all; no pickle."""
    import numpy

    buffer = io.BytesIO()
    numpy.savez_compressed(buffer, **arrays)
    write_atomically(path, buffer.getvalue())


def write_spans(path: Path, spans: Sequence[RangeSpan], dropped: int) -> None:
    """Write each time a range ran in one window; ``dropped`` is how many more there were.

    Beside ranges.npz and once, because that file is rewritten every 30 s and these rows never change.
    """
    import numpy

    # Names repeat, so they stand in tables.
    ranges = list(dict.fromkeys((span.name, span.category, span.domain) for span in spans))
    threads = list(dict.fromkeys(span.thread for span in spans))
    code = {key: number for number, key in enumerate(ranges)}
    thread = {name: number for number, name in enumerate(threads)}
    _write_arrays(
        path,
        names=numpy.array([name for name, _, _ in ranges], dtype=str),
        categories=numpy.array([category for _, category, _ in ranges], dtype=str),
        domains=numpy.array([domain for _, _, domain in ranges], dtype=str),
        threads=numpy.array(threads, dtype=str),
        range=numpy.array([code[span.name, span.category, span.domain] for span in spans], dtype=numpy.int32),
        thread=numpy.array([thread[span.thread] for span in spans], dtype=numpy.int32),
        start_ns=numpy.array([span.start_ns for span in spans], dtype=numpy.int64),
        # Open still is -1: an array has no null.
        end_ns=numpy.array([_or_minus_one(span.end_ns) for span in spans], dtype=numpy.int64),
        depth=numpy.array([span.depth for span in spans], dtype=numpy.int32),
        dropped=numpy.array(dropped, dtype=numpy.int64),
    )


def write_line_times(
    path: Path,
    *,
    thread: int,
    codes: Sequence[UserCode],
    files: dict[str, str],
    time_ns: Sequence[int],
    code: Sequence[int],
    line: Sequence[int],
    depth: Sequence[int],
    complete: bool,
) -> None:
    """Write when a thread came to which line of the user's.

    Args:
        path: See `perfkit.run.file_names.lines_beside`.
        thread: The thread's number, as the system counts them.
        codes: The user's functions that ran.
        files: All files of the user's: what torch's Python frames call them -> where they lie.
        time_ns: When the thread came to another line, in unix time.
        code: Which of ``codes`` that line is of.
        line: Its number.
        depth: How many calls of the user's functions were open, this one's included; 0: none any more, and ``line``
            is the one that the thread left.
        complete: Whether it was followed to the end of the step; not where there were too many lines.
    """
    import numpy

    _write_arrays(
        path,
        thread=numpy.array(thread, dtype=numpy.int64),
        codes=numpy.array(_ENCODER.encode(codes).decode(), dtype=str),
        files=numpy.array(_ENCODER.encode(files).decode(), dtype=str),
        time_ns=numpy.array(time_ns, dtype=numpy.int64),
        code=numpy.array(code, dtype=numpy.int32),
        line=numpy.array(line, dtype=numpy.int32),
        depth=numpy.array(depth, dtype=numpy.int32),
        complete=numpy.array(complete, dtype=bool),
    )


def _or_minus_one(value: int | None) -> int:
    return -1 if value is None else value


def merge_pairwise(rows: Sequence[Step]) -> list[Step]:
    """Merge neighbouring rows of the same kind into one: sums, ``steps`` added; others stay as they are."""
    merged: list[Step] = []
    waiting: Step | None = None
    for row in rows:
        if waiting is None:
            waiting = row
        elif _kind(waiting) == _kind(row):
            merged.append(_merge(waiting, row))
            waiting = None
        else:
            merged.append(waiting)
            waiting = row
    if waiting is not None:
        merged.append(waiting)
    return merged


def _kind(row: Step) -> tuple[object, ...]:
    return (row.mode, row.window, row.extra, row.dry)


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
        loss=first.loss,
        alloc_retries=_sum(first.alloc_retries, second.alloc_retries),
        device_allocs=_sum(first.device_allocs, second.device_allocs),
        syncs=_sum(first.syncs, second.syncs),
        recompiles=_sum(first.recompiles, second.recompiles),
        compile_ns=_sum(first.compile_ns, second.compile_ns),
        batch_elements=_sum(first.batch_elements, second.batch_elements),
        gc_ns=_sum(first.gc_ns, second.gc_ns),
        window=first.window,
        extra=first.extra,
        dry=first.dry,
    )
