"""Host time per user line inside the workers of a DataLoader, by sampling, and how busy the workers were.

While it is attached, worker processes that start run torch's worker loop with a sampler thread beside it.
Each worker rewrites a small file of counts in a folder of the run; the training process adds up the files,
drops those of workers that have ended, and at the end removes the folder, which is what tells a worker that
outlives the profile to stop. A worker's random numbers, arguments and errors are not touched.

``torch.utils.data._utils.worker._worker_loop`` is a private name that DataLoader looks up whenever it starts a
worker; where it is gone nothing is sampled in workers, and a test tells.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType
from typing import Any

import msgspec

from perfkit._code_owner import USER, function_name, owner_of, stack_of
from perfkit.record.samplers.switch_interval import SwitchInterval
from perfkit.run.atomic import write_atomically
from perfkit.run.records import LineRow, Workers

#: 20 ms: a sample takes about 0.1 ms of a busy worker's process (waking up, and waiting for the interpreter
#: lock), which at 10 ms would be 1 % of it. There are several workers, and they work for a whole epoch.
_PERIOD_S = 0.020
#: Seconds between two writes of a worker: a write takes about 0.3 ms, and what a killed worker loses is this much.
#: A persistent worker outlives the profile, so that of a short run only what was written counts: the first comes early.
_WRITE_S = 2.0
_FIRST_WRITE_S = 0.25
#: Lines that a worker counts, and that it writes (the most frequent; 200 lines are 30 kB).
_MAX_LINES = 2_000
_WRITTEN_LINES = 200
#: Lines of all workers that are kept: those of 50 workers that have nothing in common.
_MAX_ROWS = 10_000
#: torch's file whose functions fetch and collate: a worker with one of them on its stack is at work.
_FETCH = os.path.join("data", "_utils", "fetch.py")

#: file, line, function, owner
_Line = tuple[str, int, str, str]


class _Counts(msgspec.Struct, kw_only=True):
    """One worker's file, and the sums over several."""

    dataset: str
    processes: int = 1
    samples: int = 0
    busy: int = 0
    alive_ns: int = 0
    cpu_ns: int = 0
    sampling_ns: int = 0
    lines: list[tuple[_Line, int]] = []


class WorkerSampler:
    """The training process's part: has workers sampled while attached, and reads what they counted.

    ``folder`` is made for this, and removed by `detach`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ended: dict[str, _Sum] = {}
        self._read: dict[str, _Sum] = {}
        self._undo: Callable[[], None] | None = None

    def attach(self) -> None:
        """Have every worker that starts from now on sampled; torch must be loaded."""
        from torch.utils.data._utils import worker

        place: Any = worker
        loop = place._worker_loop
        self._folder.mkdir(parents=True, exist_ok=True)
        sampled = _SampledLoop(str(self._folder.absolute()), loop)
        place._worker_loop = sampled

        def undo() -> None:
            # A program that wrapped it after us keeps its wrapper; ours then finds no folder and only calls through.
            if place._worker_loop is sampled:
                place._worker_loop = loop

        self._undo = undo

    def forget(self) -> None:
        """Put torch's worker loop back, and leave the folder: what a forked child does, whose parent goes on."""
        if self._undo is not None:
            self._undo()
            self._undo = None

    def detach(self) -> None:
        """Put torch's worker loop back, take the last counts, and have living workers stop sampling."""
        if self._undo is None:
            return
        self.forget()
        self._collect()
        shutil.rmtree(self._folder, ignore_errors=True)
        # Nobody reads what the living ones write from here on: they count as ended, also where we attach again.
        self._ended = self._read

    @property
    def attached(self) -> bool:
        """Whether workers that start now are sampled."""
        return self._undo is not None

    def share(self) -> float:
        """The part of the workers' time that sampling took, as of the last `rows`."""
        alive_ns = sum(one.total.alive_ns for one in self._read.values())
        return sum(one.total.sampling_ns for one in self._read.values()) / alive_ns if alive_ns else 0.0

    def rows(self, steps: int) -> tuple[tuple[LineRow, ...], tuple[Workers, ...]]:
        """Host time per line and step, the most first, and what the workers did, per type of dataset.

        ``steps`` are all steps that the workers worked for. A worker is ahead of training by the batches
        that it prefetches, and adds its counts every 2 s.
        """
        if self._undo is not None:
            self._collect()
        lines = [row for one in self._read.values() for row in one.rows(max(1, steps))]
        return (
            tuple(sorted(lines, key=lambda row: -row.samples)),
            tuple(one.workers() for one in self._read.values()),
        )

    def _collect(self) -> None:
        living: list[_Counts] = []
        for path in self._folder.glob(".*.json"):
            try:
                counts = msgspec.json.decode(path.read_bytes(), type=_Counts)
            except (OSError, msgspec.DecodeError):
                continue
            if _alive(int(path.stem[1:])):
                living.append(counts)
            else:
                # One file per worker and epoch would be without bound.
                _add(self._ended, counts)
                path.unlink(missing_ok=True)
        self._read = {name: one.copy() for name, one in self._ended.items()}
        for counts in living:
            _add(self._read, counts)


class _Sum:
    """The counts of the workers over one type of dataset."""

    def __init__(self, dataset: str) -> None:
        self.total = _Counts(dataset=dataset, processes=0)
        self.lines: dict[_Line, int] = {}

    def add(self, counts: _Counts) -> None:
        total = self.total
        total.processes += counts.processes
        total.samples += counts.samples
        total.busy += counts.busy
        total.alive_ns += counts.alive_ns
        total.cpu_ns += counts.cpu_ns
        total.sampling_ns += counts.sampling_ns
        for line, count in counts.lines:
            if line in self.lines or len(self.lines) < _MAX_ROWS:
                self.lines[line] = self.lines.get(line, 0) + count

    def copy(self) -> _Sum:
        other = _Sum(self.total.dataset)
        other.total = msgspec.structs.replace(self.total)
        other.lines = dict(self.lines)
        return other

    def _ns(self, samples: int) -> int:
        return round(self.total.alive_ns * samples / self.total.samples) if self.total.samples else 0

    def rows(self, steps: int) -> list[LineRow]:
        return [
            LineRow(
                file=file,
                line=line,
                function=function,
                owner=owner,
                phase="data",
                samples=count,
                host_ns=round(self._ns(count) / steps),
                worker=self.total.dataset,
            )
            for (file, line, function, owner), count in self.lines.items()
        ]

    def workers(self) -> Workers:
        total = self.total
        return Workers(
            dataset=total.dataset,
            processes=total.processes,
            samples=total.samples,
            alive_ns=total.alive_ns,
            busy_ns=self._ns(total.busy),
            cpu_ns=total.cpu_ns,
            sampling_ns=total.sampling_ns,
        )


def _add(sums: dict[str, _Sum], counts: _Counts) -> None:
    sums.setdefault(counts.dataset, _Sum(counts.dataset)).add(counts)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


# -- inside a worker


class _SampledLoop:
    """torch's worker loop with a sampler beside it.

    A forked worker calls this object itself. For a spawned one it is pickled as its folder alone, and finds torch's
    own loop in the new process, where nothing is replaced.
    """

    def __init__(self, folder: str, loop: Callable[..., None]) -> None:
        self._folder = folder
        self._loop = loop

    def __reduce__(self) -> tuple[Callable[[str], _SampledLoop], tuple[str]]:
        return _sampled_loop, (self._folder,)

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        sampler = _Stacks(Path(self._folder))
        sampler.start()
        try:
            self._loop(*args, **kwargs)
        finally:
            sampler.stop()


def _sampled_loop(folder: str) -> _SampledLoop:
    from torch.utils.data._utils import worker

    return _SampledLoop(folder, worker._worker_loop)


_ENTRY: CodeType = _SampledLoop.__call__.__code__


class _Stacks:
    """Samples the thread that made it, and writes what it counted. Nothing it does may end a worker."""

    def __init__(self, folder: Path) -> None:
        # A name with a dot: it may vanish at any moment, and nobody copies such files out of a run.
        self._path = folder / f".{os.getpid()}.json"
        self._target = threading.get_ident()
        self._lines: dict[_Line, int] = {}
        self._samples = self._busy = 0
        self._stop = threading.Event()
        self._switch = SwitchInterval()
        self._thread = threading.Thread(target=self._run, name="perfkit worker sampler", daemon=True)

    def start(self) -> None:
        self._began = time.perf_counter_ns()
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
                line, busy = _line_of(stack_of(sys._current_frames().get(self._target)))
                self._samples += 1
                self._busy += busy
                if line is not None and (line in self._lines or len(self._lines) < _MAX_LINES):
                    self._lines[line] = self._lines.get(line, 0) + 1
                if time.perf_counter() > due:
                    self._write()
                    wait = min(2 * wait, _WRITE_S)
                    due = time.perf_counter() + wait
                self._switch.shorten()
            self._write()
        except Exception:  # noqa: BLE001 - the folder is gone (the profile has ended), or the disk is full
            self._stop.set()

    def _write(self) -> None:
        from torch.utils.data import get_worker_info

        info: Any = get_worker_info()
        lines = sorted(self._lines.items(), key=lambda item: -item[1])[:_WRITTEN_LINES]
        counts = _Counts(
            dataset=type(info.dataset).__name__ if info is not None else "",
            samples=self._samples,
            busy=self._busy,
            alive_ns=time.perf_counter_ns() - self._began,
            cpu_ns=time.process_time_ns(),
            sampling_ns=time.thread_time_ns(),
            lines=lines,
        )
        write_atomically(self._path, msgspec.json.encode(counts))


def _line_of(stack: Sequence[tuple[CodeType, int]]) -> tuple[_Line | None, bool]:
    """The user's line of a worker's stack (else a library's), and whether the worker is at work.

    Below the worker loop a forked worker still has the frames of the loop that trains: they are not looked at.
    """
    user: _Line | None = None
    library: _Line | None = None
    busy = False
    for code, at in stack:
        if code is _ENTRY:
            break
        owner = owner_of(code.co_filename)
        if owner == USER:
            user = user or (code.co_filename, at, function_name(code), USER)
        elif owner not in ("perfkit", "torch", "python"):
            library = library or (code.co_filename, at, function_name(code), owner)
        elif code.co_filename.endswith(_FETCH):
            busy = True
    return user or library, busy
