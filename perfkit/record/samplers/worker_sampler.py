"""Samples host time per user line in the workers of a DataLoader, and how busy the workers were.

While it is attached, worker processes that start run torch's worker loop next to a sampler thread. Each worker
rewrites a small file of counts in a folder of the run. The training process adds up the files, removes those of
workers that have ended, and finally removes the folder, which stops the sampler of a worker that outlives the profile.
A worker's random numbers, arguments and errors are not touched.

``torch.utils.data._utils.worker._worker_loop`` is a private name that DataLoader looks up when it starts a worker;
without it no worker is sampled, and a test fails.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from operator import attrgetter
from pathlib import Path
from types import CodeType
from typing import Annotated, Any

import msgspec
from torch.utils.data._utils import worker

from perfkit._code_owner import USER, frame_of, function_name, owner_of, stack_of
from perfkit._location import Location
from perfkit._patches import Patches
from perfkit.record.samplers.switch_interval import SwitchInterval
from perfkit.run.atomic import write_atomically
from perfkit.run.ending import process_runs
from perfkit.run.merging import merged_by
from perfkit.run.records import SHARED, Amount, LineRow, Workers

#: 20 ms: a sample takes about 0.1 ms of a busy worker's process (waking up, and waiting for the interpreter lock),
#: which at 10 ms would be 1% of it. There are several workers, and they work for a whole epoch.
_PERIOD_S = 0.020
#: Seconds between two writes of a worker: a write takes about 0.3 ms, and a killed worker loses this much. A persistent
#: worker outlives the profile, so of a short run only what was written counts: the first write comes early.
_WRITE_S = 2.0
_FIRST_WRITE_S = 0.25
#: Lines that a worker counts, and that it writes (the most frequent; 200 lines are 30 kB).
_MAX_LINES = 2_000
_WRITTEN_LINES = 200
#: Lines of all workers that are kept: those of 50 workers that have nothing in common.
_MAX_ROWS = 10_000
#: torch's file whose functions fetch and collate: a worker with one of them on its stack is busy.
_FETCH = os.path.join("data", "_utils", "fetch.py")
#: Part of the files of Python's own library for what processes share.
_MULTIPROCESSING = f"{os.sep}multiprocessing{os.sep}"


class _WorkerLine(Location, frozen=True, kw_only=True):
    """A line, the line in another function of the user's from which it was reached, and whether it waited for another
    process: a queue, a lock or a manager of ``multiprocessing``."""

    shared: bool = False
    called_from: Location | None = None


_LineCounts = tuple[tuple[_WorkerLine, int], ...]


def _add_lines(first: _LineCounts, second: _LineCounts) -> _LineCounts:
    counts = Counter(dict(first))
    counts.update(dict(second))
    return tuple(counts.most_common(_MAX_ROWS))


class _Counts(msgspec.Struct, frozen=True, kw_only=True):
    """One worker's file, or the sum of those of all workers over one type of dataset."""

    dataset: str
    processes: Amount = 1
    samples: Amount
    busy: Amount
    alive_ns: Amount
    cpu_ns: Amount
    sampling_ns: Amount
    lines: Annotated[_LineCounts, _add_lines]

    def ns(self, samples: int) -> int:
        """The time that this many samples stand for."""
        return round(self.alive_ns * samples / self.samples) if self.samples else 0

    def rows(self, steps: int) -> list[LineRow]:
        within: dict[Location, Counter[str]] = defaultdict(Counter)
        callers: dict[Location, Counter[Location | None]] = defaultdict(Counter)
        for line, count in self.lines:
            within[line.at][SHARED if line.shared else ""] += count
            callers[line.at][line.called_from] += count
        return [
            LineRow(
                **msgspec.structs.asdict(at),
                phase="data",
                samples=libraries.total(),
                host_ns=round(self.ns(libraries.total()) / steps),
                worker=self.dataset,
                within=dict(libraries) if SHARED in libraries else {},
                called_from=callers[at].most_common(1)[0][0],
            )
            for at, libraries in within.items()
        ]

    def workers(self) -> Workers:
        same = {name: getattr(self, name) for name in Workers.__struct_fields__ if name != "busy_ns"}
        return Workers(**same, busy_ns=self.ns(self.busy))


class WorkerSampler:
    """The training process's part: has workers sampled while attached, and adds up their counts.

    ``folder`` is created for this, and removed by `detach`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        #: By type of dataset: the workers that have ended, and all.
        self._ended: tuple[_Counts, ...] = ()
        self._sums: tuple[_Counts, ...] = ()
        self._patches = Patches()
        self.attached = False

    def attach(self) -> None:
        """Sample every worker that starts from now on."""
        loop = worker._worker_loop
        self._folder.mkdir(parents=True, exist_ok=True)
        # A program that wraps it keeps its wrapper: ours then finds no folder, and only calls the original.
        self._patches.set(worker, "_worker_loop", _SampledLoop(str(self._folder.absolute()), loop))
        self.attached = True

    def forget(self) -> None:
        """In a forked child, whose parent continues: restore torch's worker loop, and leave the folder."""
        self._patches.undo()
        self.attached = False

    def detach(self) -> None:
        """Restore torch's worker loop, read the last counts, and have running workers stop sampling."""
        if not self.attached:
            return
        self.forget()
        self._collect()
        shutil.rmtree(self._folder, ignore_errors=True)
        # Nobody reads what running workers write from here on: they count as ended, also when attached again.
        self._ended = self._sums

    def sampling_share(self) -> float:
        """The share of the workers' time that sampling took, as of the last `rows`."""
        alive_ns = sum(one.alive_ns for one in self._sums)
        return sum(one.sampling_ns for one in self._sums) / alive_ns if alive_ns else 0.0

    def rows(self, steps: int) -> tuple[tuple[LineRow, ...], tuple[Workers, ...]]:
        """Host time per line and step, most samples first, and what the workers did, per type of dataset.

        ``steps`` are all steps that the workers worked for. A worker is ahead of training by the batches that it
        prefetches, and its counts are up to 2 s old.
        """
        if self.attached:
            self._collect()
        lines = [row for one in self._sums for row in one.rows(max(1, steps))]
        return (
            tuple(sorted(lines, key=lambda row: -row.samples)),
            tuple(one.workers() for one in self._sums),
        )

    def _collect(self) -> None:
        running: list[_Counts] = []
        for path in self._folder.glob(".*.json"):
            try:
                counts = msgspec.json.decode(path.read_bytes(), type=_Counts)
            except (OSError, msgspec.DecodeError):
                continue
            if process_runs(int(path.stem[1:])):
                running.append(counts)
            else:
                # One file per worker and epoch would be without bound.
                self._ended = merged_by(attrgetter("dataset"), (*self._ended, counts))
                path.unlink(missing_ok=True)
        self._sums = merged_by(attrgetter("dataset"), (*self._ended, *running))


# -- inside a worker


class _SampledLoop:
    """torch's worker loop next to a sampler.

    A forked worker calls this object itself. For a spawned one it is pickled as its folder alone, and finds torch's
    own loop in the new process, where nothing is replaced.
    """

    def __init__(self, folder: str, loop: Callable[..., None]) -> None:
        self._folder = folder
        self._loop = loop

    def __reduce__(self) -> tuple[Callable[[str], _SampledLoop], tuple[str]]:
        return _sampled_loop, (self._folder,)

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        sampler = _StackSampler(Path(self._folder))
        sampler.start()
        try:
            self._loop(*args, **kwargs)
        finally:
            sampler.stop()


def _sampled_loop(folder: str) -> _SampledLoop:
    return _SampledLoop(folder, worker._worker_loop)


_ENTRY: CodeType = _SampledLoop.__call__.__code__


class _StackSampler:
    """Samples the thread that made it, and writes the counts. Its errors never end a worker."""

    def __init__(self, folder: Path) -> None:
        # A name with a dot: the file may vanish at any moment, and nobody copies such files out of a run.
        self._path = folder / f".{os.getpid()}.json"
        self._sampled = threading.get_ident()
        self._lines: Counter[_WorkerLine] = Counter()
        self._samples = self._busy = 0
        self._dataset = ""
        self._started_ns = 0
        self._stop = threading.Event()
        self._switch = SwitchInterval()
        self._thread = threading.Thread(target=self._run, name="perfkit worker sampler", daemon=True)

    def start(self) -> None:
        self._started_ns = time.perf_counter_ns()
        self._switch.shorten()
        try:
            self._thread.start()
        except RuntimeError:  # no more threads on this machine
            self._stop.set()

    def stop(self) -> None:
        if not self._stop.is_set():
            self._stop.set()
            self._thread.join(timeout=1.0)

    def _run(self) -> None:
        due = time.perf_counter() + _FIRST_WRITE_S
        wait = _FIRST_WRITE_S
        try:
            while not self._stop.wait(_PERIOD_S):
                self._switch.restore()
                line, busy = _line_of(stack_of(frame_of(self._sampled)))
                self._samples += 1
                self._busy += busy
                if line is not None and (line in self._lines or len(self._lines) < _MAX_LINES):
                    self._lines[line] += 1
                if time.perf_counter() > due:
                    self._write()
                    wait = min(2 * wait, _WRITE_S)
                    due = time.perf_counter() + wait
                self._switch.shorten()
            self._write()
        except Exception:  # noqa: BLE001 - the folder is removed (the profile has ended), or the disk is full
            self._stop.set()

    def _write(self) -> None:
        info: Any = worker.get_worker_info()
        if info is not None:  # before the loop begins, and in torch 2.15 after it
            self._dataset = type(info.dataset).__name__
        counts = _Counts(
            dataset=self._dataset,
            samples=self._samples,
            busy=self._busy,
            alive_ns=time.perf_counter_ns() - self._started_ns,
            cpu_ns=time.process_time_ns(),
            sampling_ns=time.thread_time_ns(),
            lines=tuple(self._lines.most_common(_WRITTEN_LINES)),
        )
        write_atomically(self._path, msgspec.json.encode(counts))


def _line_of(stack: Sequence[tuple[CodeType, int]]) -> tuple[_WorkerLine | None, bool]:
    """The user's line of a worker's stack (else a library's), and whether the worker is busy.

    Outside the worker loop a forked worker still has the frames of the training loop: they are ignored.
    """
    user: tuple[str, int, str] | None = None
    caller: Location | None = None
    library: _WorkerLine | None = None
    busy = shared = False
    for code, line in stack:
        file = code.co_filename
        if code is _ENTRY:
            break
        owner = owner_of(file)
        if owner == USER:
            function = function_name(code)
            if user is None:
                user = file, line, function
            elif caller is None and (file, function) != (user[0], user[2]):
                caller = Location(file=file, line=line, function=function, owner=owner)
        elif user is not None and not file.endswith(_FETCH):
            continue
        elif owner not in ("perfkit", "torch", "python"):
            library = library or _WorkerLine(file=file, line=line, function=function_name(code), owner=owner)
        elif file.endswith(_FETCH):
            busy = True
        elif _MULTIPROCESSING in file:
            shared = True
    if user is None:
        return library, busy
    file, line, function = user
    return _WorkerLine(file=file, line=line, function=function, shared=shared, called_from=caller), busy
