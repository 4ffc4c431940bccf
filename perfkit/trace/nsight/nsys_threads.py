"""The threads of an nsys export: their names, how long each ran on a processor, and the processes that were there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np

from perfkit.trace.intervals import Ints
from perfkit.trace.nsight._nsys_metadata import MAX_NS
from perfkit.trace.nsight._nsys_tables import NsysTables
from perfkit.trace.nsight.report_export import NSYS, export_nsys_report

#: When a thread got a processor and lost it (``nsys profile --cpuctxsw process-tree``), and samples of its state.
_SWITCHES, _SAMPLES, _OS_CALLS = "SCHED_EVENTS", "COMPOSITE_EVENTS", "OSRT_API"


class ThreadTime(msgspec.Struct, frozen=True, kw_only=True):
    """One thread over the recording.

    ``running_ns`` is how long it had a processor, ``waiting_ns`` how long it had none between its first and its last
    switch, ``switches`` how often it got one, ``processors`` on how many it ran; None where switches were not recorded.
    ``os_calls`` and ``os_ns`` are its calls of the operating system. ``states`` counts the samples of each state
    (``Running``, ``Uninterruptible`` ...) that sampling found it in; empty without sampling.
    """

    process: int
    process_name: str | None
    thread: int
    thread_name: str | None
    running_ns: int | None = None
    waiting_ns: int | None = None
    switches: int | None = None
    processors: int | None = None
    os_calls: int | None = None
    os_ns: int | None = None
    states: dict[str, int] = {}


class RecordedProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process that nsys saw, and how many of its threads have a name or an event."""

    process: int
    name: str | None
    threads: int


def nsys_export_of(path: Path) -> Path:
    """The SQLite export of a report, or the export itself.

    Raises:
        TraceError: nsys is not installed, or cannot read the report.
    """
    return export_nsys_report(path) if path.suffix in NSYS.endings else path


def read_nsys_threads(path: Path) -> tuple[ThreadTime, ...]:
    """The threads that had a processor, were sampled, or called the system; those that ran longest first.

    Raises:
        TraceError: the file is no SQLite database, or damaged so that nothing can be read.
    """
    with NsysTables(nsys_export_of(path)) as tables:
        found = tuple(_threads(tables))
    return tuple(sorted(found, key=lambda one: (-(one.running_ns or 0), -(one.os_ns or 0), one.process, one.thread)))


def read_nsys_processes(path: Path) -> tuple[RecordedProcess, ...]:
    """The processes with threads that did anything, in order of their number.

    Raises:
        TraceError: the file is no SQLite database, or damaged so that nothing can be read.
    """
    with NsysTables(nsys_export_of(path)) as tables:
        names = _process_names(tables)
        threads: dict[int, set[int]] = defaultdict(set)
        for one in _threads(tables):
            threads[one.process].add(one.thread)
    return tuple(
        RecordedProcess(process=process, name=names.get(process), threads=len(of))
        for process, of in sorted(threads.items())
    )


def _threads(tables: NsysTables) -> Iterator[ThreadTime]:
    switches, calls, states = _switches(tables), _os_calls(tables), _states(tables)
    processes, names = _process_names(tables), _thread_names(tables)
    for thread in sorted(switches.keys() | calls.keys() | states.keys()):
        running = switches.get(thread)
        called = calls.get(thread)
        process = thread >> 24 & 0xFFFFFF
        yield ThreadTime(
            process=process,
            process_name=processes.get(process),
            thread=thread & 0xFFFFFF,
            thread_name=names.get(thread),
            running_ns=running[0] if running is not None else None,
            waiting_ns=running[1] if running is not None else None,
            switches=running[2] if running is not None else None,
            processors=running[3] if running is not None else None,
            os_calls=called[0] if called is not None else None,
            os_ns=called[1] if called is not None else None,
            states=states.get(thread, {}),
        )


def _switches(tables: NsysTables) -> dict[int, tuple[int, int, int, int]]:
    """Thread -> how long it ran and waited, how often it got a processor, and on how many it ran."""
    columns = {"start": MAX_NS, "globalTid": -1, "isSchedIn": 0, "cpu": -1}
    if not tables.has(_SWITCHES, "start", "globalTid", "isSchedIn"):
        return {}
    blocks = list(tables.integers(_SWITCHES, columns))
    start, thread, is_in, cpu = (
        np.concatenate([np.zeros(0, np.int64), *(block[name] for block in blocks)]) for name in columns
    )
    found = {}
    usable = (np.abs(start) < MAX_NS) & (thread >= 0)
    for one in np.unique(thread[usable]).tolist():
        mine = np.flatnonzero(usable & (thread == one))
        mine = mine[np.argsort(start[mine], kind="stable")]
        # A thread that gets a processor has it until its next switch.
        length = np.diff(start[mine])
        ran = int(length[is_in[mine][:-1] != 0].sum())
        found[one] = ran, int(length.sum()) - ran, int((is_in[mine] != 0).sum()), _distinct(cpu[mine])
    return found


def _distinct(processors: Ints) -> int:
    return int(np.unique(processors[processors >= 0]).size)


def _os_calls(tables: NsysTables) -> dict[int, tuple[int, int]]:
    """Thread -> the number of its calls and the time in the outermost ones."""
    if not tables.has(_OS_CALLS, "start", "end", "globalTid"):
        return {}
    found: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    columns = {"start": MAX_NS, "end": MAX_NS, "globalTid": -1, "nestingLevel": 0}
    for block in tables.integers(_OS_CALLS, columns):
        usable = (np.abs(block["start"]) < MAX_NS) & (np.abs(block["end"]) < MAX_NS) & (block["globalTid"] >= 0)
        for start, end, thread, level in zip(*(block[name][usable].tolist() for name in columns), strict=True):
            found[thread][0] += 1
            found[thread][1] += max(0, end - start) if level <= 0 else 0
    return {thread: (count, ns) for thread, (count, ns) in found.items()}


def _states(tables: NsysTables) -> dict[int, dict[str, int]]:
    """Thread -> the number of samples in each state."""
    if not tables.has(_SAMPLES, "globalTid", "threadState"):
        return {}
    labels = {
        number: label
        for number, label in tables.values("ENUM_SAMPLING_THREAD_STATE", "id", "label")
        if type(number) is int and isinstance(label, str)
    }
    found: dict[int, dict[str, int]] = defaultdict(dict)
    for block in tables.integers(_SAMPLES, {"globalTid": -1, "threadState": 0}):
        for thread, state in zip(block["globalTid"].tolist(), block["threadState"].tolist(), strict=True):
            if thread >= 0:
                label = labels.get(state, f"state {state}")
                found[thread][label] = found[thread].get(label, 0) + 1
    return dict(found)


def _process_names(tables: NsysTables) -> dict[int, str]:
    rows = tables.values("PROCESSES", "pid", "name")
    return {pid: name for pid, name in rows if type(pid) is int and isinstance(name, str)}


def _thread_names(tables: NsysTables) -> dict[int, str]:
    texts = {number: text for number, text in tables.values("StringIds", "id", "value") if isinstance(text, str)}
    rows = tables.values("ThreadNames", "globalTid", "nameId")
    return {thread: texts[name] for thread, name in rows if type(thread) is int and name in texts}
