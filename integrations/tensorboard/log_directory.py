"""The runs and traces below a log directory, and the only way to open a file of them.

A file is served only if the last scan of the directory found it: a browser requests a name from that list, and the name
never becomes a path. Symbolic links are not followed, and scans are bounded.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

from perfkit._regular_file import open_regular

#: Limits of a scan; a directory of a thousand runs has some 50,000 files.
_MAX_ENTRIES = 100_000
_MAX_DEPTH = 12
_MAX_SECONDS = 20.0
#: Nobody chooses from a longer list of runs.
_MAX_RUNS = 1_000
#: A page makes several requests at once, which share a scan.
_FRESH_S = 2.0

_TRACE = re.compile(r"[^/]+\.pt\.trace\.json(\.gz)?")
_RANK = re.compile(r"rank-\d{1,7}")
_RUN_FILES = ("run.json", "diagnosis.json", "figures.json")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


class File(NamedTuple):
    """A file's size, and when it ``changed``, as a text that is only compared."""

    size: int
    changed: str


class LoggedRun(NamedTuple):
    """A run folder, or a folder with traces; its files are named relative to it."""

    name: str
    root: str
    place: str
    kind: Literal["run", "traces"]
    files: dict[str, File]
    links: tuple[str, ...]

    @property
    def traces(self) -> list[str]:
        """The names of its traces, in order."""
        return sorted((name for name in self.files if _TRACE.fullmatch(name.rsplit("/", 1)[-1])), key=_in_order)

    @property
    def version(self) -> str:
        """A text that differs whenever one of its files has changed."""
        return str(hash(tuple(sorted(self.files.items()))))

    def path(self, file: str = "") -> str:
        """The path of the folder, or of a file in it."""
        root = self.root if self.root.endswith("://") else self.root.rstrip("/")
        return "/".join([root, *filter(None, (self.place, file))])


class Listing(NamedTuple):
    """The result of a scan: the runs by name, and sentences about what could not be read."""

    runs: dict[str, LoggedRun]
    notes: tuple[str, ...]


class _Folder(NamedTuple):
    place: str
    folders: list[str]
    files: dict[str, File]
    links: list[str]


class LogDirectory:
    """The directory of ``--logdir``, or the directories of ``--logdir_spec``."""

    def __init__(self, logdir: str | None, logdir_spec: str | None = None) -> None:
        self._roots = {"": _whole(logdir)} if logdir else _parts(logdir_spec or "")
        self._lock = threading.Lock()
        self.last = Listing({}, ())
        self._scanned_s = float("-inf")

    @property
    def text(self) -> str:
        """The directory as users read it."""
        return ", ".join(self._roots.values())

    def scan(self) -> Listing:
        """What the directory holds now, or held two seconds ago; never raises."""
        if not self._lock.acquire(timeout=_MAX_SECONDS):
            return self.last._replace(notes=(*self.last.notes, "the log directory is still being scanned"))
        try:
            if time.monotonic() - self._scanned_s > _FRESH_S:
                self.last = self._scan()
                self._scanned_s = time.monotonic()
            return self.last
        finally:
            self._lock.release()

    def open(self, run: LoggedRun, file: str) -> tuple[IO[bytes], int]:
        """Open a trace of a run; also returns its size.

        Raises:
            OSError: it no longer exists, or is not a regular file (a pipe, or there is a symbolic link in its path).
        """
        if file not in run.files:
            raise FileNotFoundError(file)
        if _URL.match(run.root):
            system, root = _remote(run.root)
            path = "/".join(part for part in (str(root).rstrip("/"), run.place, file) if part)
            return system.open(path, "rb"), int(system.info(path)["size"])
        return _open_below(Path(run.root), run.path(file))

    def _scan(self) -> Listing:
        runs: dict[str, LoggedRun] = {}
        notes: list[str] = []
        for group, root in self._roots.items():
            try:
                folders = list(_bounded(_walk_remote(root) if _URL.match(root) else _walk(Path(root)), root, notes))
            except FileNotFoundError:
                notes.append(f"{root} does not exist yet")
                continue
            except Exception as error:  # noqa: BLE001 - a file system of fsspec may raise anything
                notes.append(f"{root} cannot be read: {type(error).__name__}: {error}")
                continue
            for run in _grouped(group, root, folders):
                if len(runs) == _MAX_RUNS:
                    notes.append(f"{root} holds more than {_MAX_RUNS:,} runs: only the first ones are listed")
                    break
                runs[run.name] = run
        return Listing(runs, tuple(notes))


def _whole(path: str) -> str:
    return path if _URL.match(path) else os.path.realpath(os.path.expanduser(path))


def _parts(spec: str) -> dict[str, str]:
    """The parts of ``name:path,name:path``, by name, read as TensorBoard reads them."""
    parts = {}
    for part in filter(None, spec.split(",")):
        name, colon, path = part.partition(":")
        if not colon or part.startswith("/") or _URL.match(part) or os.path.splitdrive(part)[0]:
            name, path = os.path.basename(part.rstrip("/")), part
        parts[name] = _whole(path)
    return parts


def _walk(root: Path) -> Iterator[_Folder]:
    waiting = [""]
    while waiting:
        place = waiting.pop()
        folder = _Folder(place, [], {}, [])
        try:
            entries = os.scandir(root / place)
        except OSError:
            if not place:
                raise
            continue  # deleted meanwhile, or not readable
        with entries:
            for entry in entries:
                try:
                    entry.name.encode()  # a name that is not valid text cannot be requested
                    if entry.is_symlink():
                        folder.links.append(entry.name)
                    elif entry.is_dir(follow_symlinks=False):
                        folder.folders.append(entry.name)
                    elif entry.is_file(follow_symlinks=False):
                        about = entry.stat(follow_symlinks=False)
                        folder.files[entry.name] = File(about.st_size, str(about.st_mtime_ns))
                except (OSError, UnicodeEncodeError):
                    continue  # or deleted meanwhile
        yield folder
        if place.count("/") < _MAX_DEPTH:
            waiting += [_below(place, name) for name in sorted(folder.folders, reverse=True)]


def _remote(url: str) -> tuple[Any, str]:
    import fsspec  # only a log directory at a URL needs it

    system, path = fsspec.core.url_to_fs(url)
    return system, path


def _walk_remote(url: str) -> Iterator[_Folder]:
    system, root = _remote(url)
    if not system.exists(root):
        raise FileNotFoundError(url)
    for path, folders, files in system.walk(root, maxdepth=_MAX_DEPTH, detail=True):
        links = [name for name, about in (*folders.items(), *files.items()) if about.get("islink")]
        for name in links:
            folders.pop(name, None)  # walk() continues with what remains
            files.pop(name, None)
        yield _Folder(
            str(path)[len(str(root).rstrip("/")) :].strip("/"),
            list(folders),
            {name: File(int(about.get("size") or 0), _changed(about)) for name, about in files.items()},
            links,
        )


def _changed(about: dict[str, Any]) -> str:
    names = ("mtime", "LastModified", "last_modified", "updated", "etag")
    return next((str(about[name]) for name in names if name in about), "")


def _bounded(folders: Iterator[_Folder], root: str, notes: list[str]) -> Iterator[_Folder]:
    seen, until = 0, time.monotonic() + _MAX_SECONDS
    for folder in folders:
        yield folder
        seen += len(folder.files) + len(folder.folders) + len(folder.links)
        if seen > _MAX_ENTRIES or time.monotonic() > until:
            notes.append(f"{root} holds too many files, so some runs may be missing: choose a folder inside it")
            return


def _grouped(group: str, root: str, folders: list[_Folder]) -> Iterator[LoggedRun]:
    """The runs, each with the files of its ranks, and the folders with traces that are no rank of a run."""
    by_place = {folder.place: folder for folder in folders}
    for place, folder in sorted(by_place.items()):
        name = _below(group, place) or "."
        parent, _, own_name = place.rpartition("/")
        ranks = [rank for rank in folder.folders if _RANK.fullmatch(rank)]
        if ranks or any(file in folder.files for file in _RUN_FILES):
            files = {file: about for file, about in folder.files.items() if file in _RUN_FILES}
            links = [file for file in folder.links if file in _RUN_FILES or _RANK.fullmatch(file)]
            for rank in ranks:
                inside = by_place.get(_below(place, rank), _Folder("", [], {}, []))
                files |= {f"{rank}/{file}": about for file, about in inside.files.items() if not file.startswith(".")}
                links += [f"{rank}/{file}" for file in inside.links]
            yield LoggedRun(name, root, place, "run", files, tuple(links))
        elif not (_RANK.fullmatch(own_name) and parent in by_place):
            traces = {file: about for file, about in folder.files.items() if _TRACE.fullmatch(file) and file[0] != "."}
            if traces:
                yield LoggedRun(name, root, place, "traces", traces, ())


def _below(place: str, name: str) -> str:
    return "/".join(part for part in (place, name) if part)


def _in_order(name: str) -> list[tuple[int, str]]:
    """``window-10`` after ``window-9``."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _open_below(root: Path, path: str) -> tuple[IO[bytes], int]:
    # A link or a pipe may have replaced the file since the scan.
    file = open_regular(path, inside=root)
    return file, os.fstat(file.fileno()).st_size
