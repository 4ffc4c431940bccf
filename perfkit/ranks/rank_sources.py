"""A path -> which ranks it holds, and which file or folder each is in.

A path is a run folder or several, or traces of several ranks as other tools leave them: ``HOST_PID.TIME.pt.trace.json``
(torch, Lightning, which add a worker's name), ``iteration_10/rank3_trace.json`` (torchtitan), ``rank-3.json.gz`` (HTA),
``report.3.nsys-rep``. The rank of a trace is the one that it was recorded with (``distributedInfo``), else the one in
its name.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated

import msgspec

from perfkit._regular_file import read_regular
from perfkit._versioned_json import MAX_JSON_BYTES, decode_json
from perfkit.errors import PerfkitError, RunError
from perfkit.ranks._trace_files import file_name, trace_of_each_rank
from perfkit.ranks.rank_columns import SCHEMA, Origin
from perfkit.run.records.rank import MAX_RANKS
from perfkit.run.remote import RemoteFile, fetched, is_url, list_files

#: Levels of folders that are searched: a run's in a folder per node, ``profile_traces/iteration_10`` of torchtitan.
DEPTH = 4
#: Files that are not traces, of a launch that has ten thousand of them, need not all be opened.
_TRACE = re.compile(r"\.(json|json\.gz|sqlite|nsys-rep)$")
_RANK_FILE = re.compile(r"^(?P<run>.*?)/?(?P<folder>rank-(?P<rank>\d{1,7}))/(?P<name>[^/]+)$")
_RECORDS = ("rank.json", "steps.jsonl")
_RUN_RECORDS = ("run.json", "diagnosis.json", "figures.json", "trial.json", "sweep.json")
_WINDOW = re.compile(r"window-(\d{1,9})\.(pt\.trace\.json(\.gz)?|sqlite)")


class RankSource(msgspec.Struct, frozen=True, kw_only=True):
    """Where one rank's columns come from: a rank's folder in a run, or a trace; a path or a URL.

    ``files`` are the files of a rank's folder at a URL. ``digest`` changes when one of them does.
    """

    rank: int
    path: str
    origin: Origin
    digest: str
    files: tuple[str, ...] = ()
    world_size: int | None = None
    host: str = ""
    launch: str = ""


class RankSources(msgspec.Struct, frozen=True, kw_only=True):
    """The ranks of a path, in order: by their rows, and by a trace of each.

    ``notes`` has a sentence for everything that was left out, and for ranks that are known by names of files alone.
    """

    path: str
    rows: tuple[RankSource, ...] = ()
    traces: tuple[RankSource, ...] = ()
    world_size: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks with rows or a trace."""
        return tuple(sorted({one.rank for one in (*self.rows, *self.traces)}))

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks below the world size that have neither."""
        size = self.world_size if self.world_size is not None else max(self.ranks, default=-1) + 1
        found = set(self.ranks)
        # A damaged file may claim any size.
        return tuple(rank for rank in range(min(size, MAX_RANKS)) if rank not in found)


def find_ranks(path: str | os.PathLike[str]) -> RankSources:
    """The ranks that a path holds.

    Args:
        path: A run folder, a folder, a pattern (``traces/*.json.gz``), a file, or a URL for fsspec of one of these.

    Raises:
        RunError: nothing exists there, or nothing that has a rank.
        UsageError, MissingDependency: no file system supports the URL.
    """
    text = os.fspath(path)
    files = list_files(text, DEPTH) if is_url(text) else list(_local_files(text))
    if not files and not os.path.isdir(text):
        raise RunError(f"{text} does not exist or is empty: pass a run folder, or a folder or a pattern of traces")
    in_ranks = [(file, match) for file in files if (match := _RANK_FILE.match(file.url))]
    if any(match["name"] in _RECORDS for _, match in in_ranks):
        return _of_runs(text, files, in_ranks)
    traces = [file for file in files if _TRACE.search(file.url)]
    if not traces:
        raise RunError(
            f"{text} holds no run (no rank-0 that `perfkit run` wrote) and no trace (*.json, *.json.gz, *.sqlite, "
            "*.nsys-rep)"
        )
    return _of_traces(text, traces)


def _local_files(path: str) -> Iterator[RemoteFile]:
    """The files at a path, sorted, without links and without those whose names begin with a dot."""
    matches = [path] if os.path.exists(path) else sorted(glob.glob(path, recursive=True))
    for match in matches:
        base = os.path.abspath(match)
        if not os.path.isdir(base):
            yield from _stamped([base])
            continue
        for folder, folders, names in os.walk(base):
            depth = folder[len(base) :].count(os.sep)
            folders[:] = sorted(name for name in folders if not name.startswith(".")) if depth < DEPTH else []
            yield from _stamped(os.path.join(folder, name) for name in sorted(names) if not name.startswith("."))


def _stamped(paths: Iterable[str]) -> Iterator[RemoteFile]:
    for path in paths:
        if os.path.isfile(path) and not os.path.islink(path):
            status = os.stat(path)
            yield RemoteFile(path, status.st_size, str(status.st_mtime_ns))


def _digest(files: Iterable[RemoteFile]) -> str:
    text = "\0".join(f"{file.url}\0{file.size}\0{file.stamp}" for file in files)
    return hashlib.sha256(f"{SCHEMA}\0{text}".encode(errors="surrogateescape")).hexdigest()[:24]


# -- run folders


class _RunFacts(msgspec.Struct):
    """What is read of run.json here."""

    world_size: Annotated[int, msgspec.Meta(ge=0, le=MAX_RANKS)] | None = None
    launch_id: str = ""


def _of_runs(
    path: str, files: Sequence[RemoteFile], in_ranks: Sequence[tuple[RemoteFile, re.Match[str]]]
) -> RankSources:
    folders: dict[str, dict[int, list[RemoteFile]]] = defaultdict(lambda: defaultdict(list))
    for file, match in in_ranks:
        folders[match["run"]][int(match["rank"])].append(file)
    rows: dict[int, RankSource] = {}
    # A recording by window and rank.
    windows: dict[int, dict[int, RankSource]] = defaultdict(dict)
    sizes, notes = [], []
    for run in sorted(folders, key=lambda run: _last_written(folders[run]), reverse=True):
        # The folders of one launch's nodes have different ranks, those of two runs have the same.
        if both := rows.keys() & folders[run].keys():
            notes.append(f"{run} was left out: rank {min(both)} is in a newer run too; pass its path to read it")
            continue
        facts = _run_facts(run, files)
        sizes.append(facts.world_size)
        for rank, members in folders[run].items():
            source = RankSource(
                rank=rank, path=f"{run}/rank-{rank}" if run else f"rank-{rank}", origin="rows", digest=""
            )
            source = msgspec.structs.replace(source, world_size=facts.world_size, launch=facts.launch_id)
            records = [file for file in members if file_name(file.url) in _RECORDS]
            if records:
                names = tuple(file.url for file in records)
                rows[rank] = msgspec.structs.replace(source, digest=_digest(records), files=names)
            for file in members:
                if window := _WINDOW.fullmatch(file_name(file.url)):
                    windows[int(window[1])][rank] = msgspec.structs.replace(
                        source, path=file.url, origin="trace", digest=_digest([file])
                    )
    inside = {file.url for file, _ in in_ranks}
    others = [file for file in files if _TRACE.search(file.url) and file.url not in inside]
    others = [file for file in others if file_name(file.url) not in _RUN_RECORDS]
    if others:
        notes.append(
            f"{len(others)} traces next to the run were not read, {file_name(others[0].url)} for one: pass their path"
        )
    # The window that most ranks have, the newest of them.
    chosen = max(windows, key=lambda index: (len(windows[index]), index), default=None)
    return RankSources(
        path=path,
        rows=tuple(rows[rank] for rank in sorted(rows)),
        traces=tuple(windows[chosen][rank] for rank in sorted(windows[chosen])) if chosen is not None else (),
        world_size=max((size for size in sizes if size is not None), default=None),
        notes=tuple(notes),
    )


def _last_written(ranks: dict[int, list[RemoteFile]]) -> int:
    stamps = (file.stamp for members in ranks.values() for file in members)
    return max((int(stamp) for stamp in stamps if stamp.isdecimal()), default=0)


def _run_facts(run: str, files: Sequence[RemoteFile]) -> _RunFacts:
    """What run.json says; nothing where there is none, or a damaged one."""
    name = f"{run}/run.json" if run else "run.json"
    if not any(file.url == name for file in files):
        return _RunFacts()
    try:
        if not is_url(name):
            return decode_json(read_regular(name, MAX_JSON_BYTES), _RunFacts)
        with fetched(name) as copy:
            return decode_json(read_regular(copy, MAX_JSON_BYTES), _RunFacts)
    except (OSError, PerfkitError, msgspec.DecodeError):
        return _RunFacts()


def _of_traces(path: str, files: Sequence[RemoteFile]) -> RankSources:
    found = trace_of_each_rank(files)
    if not found.ranks:
        raise RunError(
            f"{path} holds no trace that has a rank: none was recorded with one (distributedInfo), and no name has "
            "one; name the files rank-0.json, rank-1.json, ..."
        )
    sizes = [trace.world_size for trace in found.ranks.values() if trace.world_size is not None]
    return RankSources(
        path=path,
        traces=tuple(
            RankSource(
                rank=rank,
                path=trace.file.url,
                origin="trace",
                digest=_digest([trace.file]),
                world_size=trace.world_size,
                host=trace.host,
            )
            for rank, trace in sorted(found.ranks.items())
        ),
        world_size=max(sizes, default=None),
        notes=found.notes,
    )
