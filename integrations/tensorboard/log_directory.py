"""The runs and traces below a log directory, and the only way to a file of them.

A file is served if, and only if, the last look at the directory found it: what a browser asks for is a name in that
list, and never becomes a path. Symbolic links are not followed, and looking is bounded.
"""

from __future__ import annotations

import os
import re
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

#: One look takes at most so many entries, and so deep; a directory of a thousand runs has some 50,000 files.
_ENTRIES = 100_000
_DEEPEST = 12
_SECONDS = 20.0
#: A list of more runs is nothing that a person picks from.
_RUNS = 1_000
#: A page asks for several things at once; they see one look.
_FRESH_S = 2.0

_TRACE = re.compile(r"[^/]+\.pt\.trace\.json(\.gz)?")
_RANK = re.compile(r"rank-\d{1,7}")
_OF_A_RUN = ("run.json", "diagnosis.json", "figures.json")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


class File(NamedTuple):
    """What is known of a file: when it ``changed`` is only compared."""

    size: int
    changed: str


class Found(NamedTuple):
    """A run folder, or a folder that has traces in it; files are named relative to it."""

    name: str
    root: str
    place: str
    kind: Literal["run", "traces"]
    files: dict[str, File]
    links: tuple[str, ...]

    @property
    def traces(self) -> list[str]:
        """Its traces, in order."""
        return sorted((name for name in self.files if _TRACE.fullmatch(name.rsplit("/", 1)[-1])), key=_in_order)

    @property
    def version(self) -> str:
        """Another text whenever a file of it has changed."""
        return str(hash(tuple(sorted(self.files.items()))))

    def path(self, file: str = "") -> str:
        """Where it lies, or a file of it."""
        root = self.root if self.root.endswith("://") else self.root.rstrip("/")
        return "/".join([root, *filter(None, (self.place, file))])


class Listing(NamedTuple):
    """What one look found: by name, and sentences on what could not be seen."""

    runs: dict[str, Found]
    notes: tuple[str, ...]


class _Folder(NamedTuple):
    place: str
    folders: list[str]
    files: dict[str, File]
    links: list[str]


class LogDirectory:
    """What TensorBoard was started with: ``--logdir``, or the parts of ``--logdir_spec``."""

    def __init__(self, logdir: str | None, logdir_spec: str | None = None) -> None:
        self._roots = {"": _whole(logdir)} if logdir else _parts(logdir_spec or "")
        self._one = threading.Lock()
        self._last = Listing({}, ())
        self._looked = float("-inf")

    @property
    def text(self) -> str:
        """What it is, for a person."""
        return ", ".join(self._roots.values())

    @property
    def last(self) -> Listing:
        """What the last look found, without another."""
        return self._last

    def look(self) -> Listing:
        """What lies there now, or did two seconds ago; never raises."""
        if not self._one.acquire(timeout=_SECONDS):
            return self._last._replace(notes=(*self._last.notes, "the log directory is still being looked through"))
        try:
            if time.monotonic() - self._looked > _FRESH_S:
                self._last = self._look()
                self._looked = time.monotonic()
            return self._last
        finally:
            self._one.release()

    def open(self, found: Found, file: str) -> tuple[IO[bytes], int]:
        """A trace of what was found, opened, and its size.

        Raises:
            OSError: it is not there any more, or is no file of its own (a symbolic link on the way to it, a pipe).
        """
        if file not in found.files:
            raise FileNotFoundError(file)
        if _URL.match(found.root):
            system, root = _remote(found.root)
            path = "/".join(part for part in (str(root).rstrip("/"), found.place, file) if part)
            return system.open(path, "rb"), int(system.info(path)["size"])
        return _open_below(Path(found.root), found.path(file))

    def _look(self) -> Listing:
        runs: dict[str, Found] = {}
        notes: list[str] = []
        for group, root in self._roots.items():
            try:
                folders = list(_bounded(_walk_remote(root) if _URL.match(root) else _walk(Path(root)), root, notes))
            except FileNotFoundError:
                notes.append(f"{root} is not there yet")
                continue
            except Exception as error:  # noqa: BLE001 - a file system of fsspec's may raise anything
                notes.append(f"{root} cannot be read: {type(error).__name__}: {error}")
                continue
            for found in _grouped(group, root, folders):
                if len(runs) == _RUNS:
                    notes.append(f"{root} holds more than {_RUNS:,} runs: the first ones are listed")
                    break
                runs[found.name] = found
        return Listing(runs, tuple(notes))


def _whole(path: str) -> str:
    return path if _URL.match(path) else os.path.realpath(os.path.expanduser(path))


def _parts(spec: str) -> dict[str, str]:
    """``name:path,name:path``, as TensorBoard reads it."""
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
            continue  # gone meanwhile, or not ours to read
        with entries:
            for entry in entries:
                try:
                    entry.name.encode()  # a name that is no text cannot be asked for
                    if entry.is_symlink():
                        folder.links.append(entry.name)
                    elif entry.is_dir(follow_symlinks=False):
                        folder.folders.append(entry.name)
                    elif entry.is_file(follow_symlinks=False):
                        about = entry.stat(follow_symlinks=False)
                        folder.files[entry.name] = File(about.st_size, str(about.st_mtime_ns))
                except (OSError, UnicodeEncodeError):
                    continue  # or gone meanwhile
        yield folder
        if place.count("/") < _DEEPEST:
            waiting += [_below(place, name) for name in sorted(folder.folders, reverse=True)]


def _remote(url: str) -> tuple[Any, str]:
    import fsspec

    system, path = fsspec.core.url_to_fs(url)
    return system, path


def _walk_remote(url: str) -> Iterator[_Folder]:
    system, root = _remote(url)
    if not system.exists(root):
        raise FileNotFoundError(url)
    for path, folders, files in system.walk(root, maxdepth=_DEEPEST, detail=True):
        links = [name for name, about in (*folders.items(), *files.items()) if about.get("islink")]
        for name in links:
            folders.pop(name, None)  # walk() goes into what is left
            files.pop(name, None)
        yield _Folder(
            str(path)[len(str(root).rstrip("/")) :].strip("/"),
            list(folders),
            {name: File(int(about.get("size") or 0), _changed(about)) for name, about in files.items()},
            links,
        )


def _changed(about: dict[str, Any]) -> str:
    return next(
        (str(about[name]) for name in ("mtime", "LastModified", "last_modified", "updated", "etag") if name in about),
        "",
    )


def _bounded(folders: Iterator[_Folder], root: str, notes: list[str]) -> Iterator[_Folder]:
    seen, until = 0, time.monotonic() + _SECONDS
    for folder in folders:
        yield folder
        seen += len(folder.files) + len(folder.folders) + len(folder.links)
        if seen > _ENTRIES or time.monotonic() > until:
            notes.append(f"{root} holds too much to look through: some runs may be missing, name a folder inside it")
            return


def _grouped(group: str, root: str, folders: list[_Folder]) -> Iterator[Found]:
    by_place = {folder.place: folder for folder in folders}
    for folder in sorted(folders, key=lambda folder: folder.place):
        ranks = [name for name in folder.folders if _RANK.fullmatch(name)]
        name = _below(group, folder.place) or "."
        if ranks or any(file in folder.files for file in _OF_A_RUN):
            files = {file: about for file, about in folder.files.items() if file in _OF_A_RUN}
            links = [file for file in folder.links if file in _OF_A_RUN or _RANK.fullmatch(file)]
            for rank in ranks:
                inside = by_place.get(_below(folder.place, rank), _Folder("", [], {}, []))
                files |= {f"{rank}/{file}": about for file, about in inside.files.items() if not file.startswith(".")}
                links += [f"{rank}/{file}" for file in inside.links]
            yield Found(name, root, folder.place, "run", files, tuple(links))
        elif not (
            _RANK.fullmatch(folder.place.rsplit("/", 1)[-1]) and "/".join(folder.place.split("/")[:-1]) in by_place
        ):
            files = {
                file: about
                for file, about in folder.files.items()
                if _TRACE.fullmatch(file) and not file.startswith(".")
            }
            if files:
                yield Found(name, root, folder.place, "traces", files, ())


def _below(place: str, name: str) -> str:
    return "/".join(part for part in (place, name) if part)


def _in_order(name: str) -> list[tuple[int, str]]:
    """``window-10`` after ``window-9``."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _open_below(root: Path, path: str) -> tuple[IO[bytes], int]:
    # Not blocked by a pipe that has taken the file's place.
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        about = os.fstat(handle)
        # Looked at after it was opened: a link that was put in the way in between has led somewhere else.
        if not stat.S_ISREG(about.st_mode) or os.path.realpath(path) != path or not Path(path).is_relative_to(root):
            raise FileNotFoundError(path)
        if not os.path.samestat(about, os.lstat(path)):
            raise FileNotFoundError(path)
        return os.fdopen(handle, "rb"), about.st_size
    except BaseException:
        os.close(handle)
        raise
