"""Traces of several ranks: which rank each is of, and which one stands for a rank that has several."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import msgspec

from perfkit.errors import PerfkitError, TraceError
from perfkit.run.remote import RemoteFile, fetched, is_url
from perfkit.trace.kineto import read_kineto_metadata

#: Bytes of a trace at a URL that are read for its rank: metadata of 300 ranks is 20 kB, packed less.
_HEAD_BYTES = 256 << 10
#: Beginnings of files that are read at once: a URL takes some 50 ms, of which nearly all is waiting.
_READERS = 16
_NSYS = re.compile(r"\.(sqlite|nsys-rep)$")
#: ``rank3_trace.json``, ``rank-3.json.gz``, ``dp0_tp1_rank7.json``; then what Lightning, Accelerate and nsys' own
#: patterns (``%q{SLURM_PROCID}``) leave: a number before the ending or before a time.
_NAMED = re.compile(r"rank[-_ .]?(\d{1,7})(?!\d)", re.IGNORECASE)
_NUMBERED = re.compile(r"(?:^|[-_.])(\d{1,6})(?:\.\d{10,})?(?:\.pt)?(?:[._]trace)?\.(?:json|json\.gz|sqlite|nsys-rep)$")
_TIME = re.compile(r"\.(\d{10,})\.")
_HOST = re.compile(r"(?:^|/)([A-Za-z0-9][A-Za-z0-9.-]*)_\d+\.\d{10,}\.pt\.trace\.json(?:\.gz)?$")


class TraceFile(msgspec.Struct, frozen=True):
    """A trace, and what the beginning of its file and its name say; None and empty where they do not."""

    file: RemoteFile
    rank: int | None
    world_size: int | None
    host: str


class TracesFound(NamedTuple):
    """A trace for each rank, and a sentence for everything that was left out."""

    ranks: dict[int, TraceFile]
    notes: tuple[str, ...]


def trace_of_each_rank(files: Sequence[RemoteFile]) -> TracesFound:
    """The traces among these files, one for each rank."""
    notes: list[str] = []
    with ThreadPoolExecutor(_READERS) as readers:
        found = [trace for trace in readers.map(_read_head, files) if trace is not None]
    if strange := len(files) - len(found):
        notes.append(f"{strange} of {len(files)} files were skipped because they are not traces")
    ranks = _one_each(_of_one_job(_named(found, notes), notes), notes)
    return TracesFound(ranks, tuple(notes))


def _read_head(file: RemoteFile) -> TraceFile | None:
    """The rank that a trace was recorded with; None if it is not a trace."""
    host = match[1] if (match := _HOST.search(file.url)) else ""
    if _NSYS.search(file.url):
        return TraceFile(file, None, None, host)
    try:
        if is_url(file.url):
            with fetched(file.url, _HEAD_BYTES) as head:
                metadata = read_kineto_metadata(head)
        else:
            metadata = read_kineto_metadata(Path(file.url))
    except TraceError:
        return None
    except (OSError, PerfkitError):
        return TraceFile(file, None, None, host)  # mapping it says what is wrong with it
    return TraceFile(file, metadata.rank, metadata.world_size, metadata.host or host)


def _named(found: Sequence[TraceFile], notes: list[str]) -> list[TraceFile]:
    """The traces that have a rank, those without one by their names."""
    known = [trace for trace in found if trace.rank is not None and trace.rank >= 0]
    others = [trace for trace in found if trace.rank is None or trace.rank < 0]
    names = [file_name(trace.file.url) for trace in others]
    numbers = [_named_rank(trace.file.url) for trace in others]
    if any(number is None for number in numbers):
        plain = [match[1] if (match := _NUMBERED.search(name)) else None for name in names]
        # A number that is not a rank repeats, or is one of a thousand where there are eight files.
        distinct = len({number for number in plain if number is not None}) == len(plain)
        if distinct and not known and all(number is not None and int(number) < 2 * len(plain) for number in plain):
            numbers = [int(number) for number in plain if number is not None]
        elif len(found) == 1:
            numbers = [0]
    named = [
        msgspec.structs.replace(trace, rank=number)
        for trace, number in zip(others, numbers, strict=True)
        if number is not None
    ]
    if named:
        notes.append(f"the ranks of {len(named)} of {len(found)} traces are known by the names of their files alone")
    if unknown := len(others) - len(named):
        name = next(name for name, number in zip(names, numbers, strict=True) if number is None)
        notes.append(
            f"{unknown} of {len(found)} traces were left out because no rank is known of them, {name} for one: "
            "name it rank-0.json"
        )
    return [*known, *named]


def _named_rank(url: str) -> int | None:
    """The rank in the name of a file, else in that of its folder."""
    for name in reversed(url.split("/")[-2:]):
        if found := _NAMED.findall(name):
            return int(found[-1])
    return None


def _of_one_job(found: Sequence[TraceFile], notes: list[str]) -> list[TraceFile]:
    """The traces of the job that most of them are of, by its number of ranks."""
    sizes = Counter(trace.world_size for trace in found if trace.world_size is not None)
    if not sizes:
        return [*found]
    size = max(sizes, key=lambda one: (sizes[one], one))
    others = [trace for trace in found if trace.world_size not in (None, size)]
    beyond = [trace for trace in found if trace not in others and (trace.rank or 0) >= size]
    for left_out in filter(None, (others, beyond)):
        one = left_out[0]
        of = f"a job of {one.world_size}" if left_out is others else f"rank {one.rank}"
        notes.append(
            f"{len(left_out)} of {len(found)} traces were left out, {file_name(one.file.url)} for one: it is of {of}, "
            f"most are of a job of {size} ranks"
        )
    return [trace for trace in found if trace not in others and trace not in beyond]


def _one_each(found: Sequence[TraceFile], notes: list[str]) -> dict[int, TraceFile]:
    """One trace for each rank: where there are several, those of the folder with most ranks, and the newest there."""
    by_rank: dict[int, list[TraceFile]] = defaultdict(list)
    for trace in found:
        by_rank[trace.rank or 0].append(trace)
    folders: dict[str, set[int]] = defaultdict(set)
    for trace in found:
        folders[_folder(trace.file.url)].add(trace.rank or 0)
    if any(len(traces) > 1 for traces in by_rank.values()) and len(folders) > 1:
        best = max(folders, key=lambda folder: (len(folders[folder]), _natural(folder)))
        if len(folders[best]) > 1 or len(by_rank) == 1:
            notes.append(f"of {len(folders)} folders of traces {file_name(best)} was read: pass another one's path")
            by_rank = {
                rank: inside
                for rank, traces in by_rank.items()
                if (inside := [trace for trace in traces if _folder(trace.file.url) == best])
            }
    several = {rank: len(traces) for rank, traces in by_rank.items() if len(traces) > 1}
    if several:
        counts = set(several.values())
        if len(several) == len(by_rank) and len(counts) == 1:
            notes.append(f"each rank has {counts.pop()} traces, of each the newest that is not cut short was read")
        else:
            shown = ", ".join(f"{rank} ({number})" for rank, number in sorted(several.items())[:5])
            notes.append(
                f"{len(several)} of {len(by_rank)} ranks have several traces, of which the newest that is not cut "
                f"short was read: rank {shown}; if they are of two runs, pass the path of one"
            )
    return {rank: _newest(traces) for rank, traces in by_rank.items()}


def _newest(traces: Sequence[TraceFile]) -> TraceFile:
    """The newest trace, unless it has less than half the size of the largest: the end of a training cuts the last."""
    enough = max(trace.file.size for trace in traces) / 2

    def age(trace: TraceFile) -> tuple[int, str, str]:
        time = _TIME.search(trace.file.url)
        return int(time[1]) if time else 0, trace.file.stamp.rjust(30), trace.file.url

    return max((trace for trace in traces if trace.file.size >= enough), key=age)


def _natural(text: str) -> list[tuple[int, str]]:
    """A key that sorts ``iteration_10`` after ``iteration_9``."""
    return [(int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d{1,18})", text)]


def _folder(url: str) -> str:
    return url.rpartition("/")[0]


def file_name(url: str) -> str:
    """The last part of a path or URL."""
    return url.rstrip("/").rsplit("/", 1)[-1]
