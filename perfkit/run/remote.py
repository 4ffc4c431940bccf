"""Runs and traces at fsspec URLs: copied into a local folder to be read, and copied to a URL when they are finished.

Files from a URL are untrusted: of a run only its known files are fetched, under their own names, and no path leaves the
folder that they are copied into.
"""

from __future__ import annotations

import errno
import hashlib
import os
import queue
import re
import socket
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from perfkit._env import cache_folder
from perfkit.errors import MissingDependency, RunError, TraceError, UsageError
from perfkit.run.arrays import MAX_BYTES

#: The files of a run folder; others at the URL are not fetched.
_RUN_FILES = re.compile(
    r"run\.json|diagnosis\.json|figures\.json|rank-\d{1,7}/(rank\.json|steps\.jsonl|ranges\.npz|syncs\.json|lines\.json|"
    r"limits\.json|(window|stacks)-\d{1,9}\.pt\.trace\.json(\.gz)?|stacks-\d{1,9}\.lines\.npz|ranges-\d{1,9}\.npz|"
    r"memory-\d{1,9}(\.oom)?\.pickle)"
)
_TRACE_FILE = re.compile(r"\.json\.gz$|\.pt\.trace\.json$|\.pickle$")
#: A window that perfkit records has at most 2 GiB, as plain text.
MAX_TRACE_BYTES = 16 * 2**30
#: Seconds in which an address answers what one file is. s3fs gives up a refused connection after 6.5 s, and one that is
#: not answered after minutes.
_ANSWERS_S = 8.0
_NO_WAY = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN)


def is_url(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a URL for fsspec: ``s3://bucket/run``, ``memory://x``."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*(::|://)", os.fspath(path)) is not None


def _open(url: str) -> tuple[Any, str]:
    import fsspec  # only a program that passes a URL needs it

    try:
        system, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise MissingDependency(f"{url} needs another package: {error}") from error
    except ValueError as error:
        raise UsageError(f"{url} is not a URL that fsspec supports: {error}") from error
    return system, str(path)


def _check_answers(system: Any, path: str, url: str) -> None:
    """Refuse an address that does not answer: some file systems list it as an empty one, or wait for minutes.

    Raises:
        RunError: it does not answer, or not with what is there.
    """
    answer: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()

    def ask() -> None:
        try:
            system.info(path)
            answer.put(None)
        except Exception as error:  # noqa: BLE001 - each file system has its own
            answer.put(error)

    # A question that is never answered must not keep the program from its end.
    threading.Thread(target=ask, name="perfkit-url", daemon=True).start()
    check = "check the address, and the network from here to it"
    try:
        error = answer.get(timeout=_ANSWERS_S)
    except queue.Empty:
        raise RunError(f"{url} does not answer in {_ANSWERS_S:.0f} s: {check}") from None
    causes: list[BaseException | None] = [error]
    while causes[-1] is not None:
        causes.append(causes[-1].__cause__ or causes[-1].__context__)
    refused = next((one for one in reversed(causes) if _is_no_answer(one)), None)
    if refused is not None:
        raise RunError(f"{url} does not answer ({refused}): {check}") from error
    # What a file system says of a folder, or of a name that does not exist, is left to what lists or copies it.
    if error is not None and not isinstance(error, (OSError, NotImplementedError)):
        raise RunError(f"{url} cannot be read: {error}") from error


def _is_no_answer(error: BaseException | None) -> bool:
    if isinstance(error, (ConnectionError, TimeoutError, socket.gaierror)):
        return True
    return isinstance(error, OSError) and error.errno in _NO_WAY


def local_copy(url: str) -> Path:
    """Copy the run or trace at ``url`` into the user's cache folder; returns the path of the copy.

    Raises:
        TraceError: nothing exists at the URL.
        RunError: the URL cannot be read, does not answer, or is a folder without a run.
        MissingDependency: fsspec needs another package for this kind of URL.
    """
    system, path = _open(url)
    _check_answers(system, path, url)
    place = cache_folder() / "remote" / hashlib.sha256(url.encode()).hexdigest()[:16]
    try:
        if not system.exists(path):
            raise TraceError(f"{url} does not exist: pass a run folder or a trace file")
        if system.isdir(path):
            return _copy_run(system, path.rstrip("/"), place / "run", url)
        target = place / (Path(path).name or "trace")
        _copy_file(system, path, target, MAX_TRACE_BYTES)
    except OSError as error:
        raise RunError(f"{url} cannot be read: {error}") from error
    return target


def _copy_run(system: Any, path: str, place: Path, url: str) -> Path:
    found = {}
    for file in system.find(path):
        name = str(file)[len(path) :].lstrip("/")
        if _RUN_FILES.fullmatch(name):
            found[name] = file
    if not found:
        raise RunError(f"{url} holds no run (no run.json, no rank-0): pass a folder that `perfkit run` wrote")
    for name, file in found.items():
        _copy_file(system, file, place / name, MAX_TRACE_BYTES if _TRACE_FILE.search(name) else MAX_BYTES)
    return place


def _copy_file(system: Any, file: Any, target: Path, max_bytes: int) -> None:
    about = system.info(file)
    # A folder of this machine (file://) can hold links and pipes.
    if about.get("type") != "file" or about.get("islink"):
        raise OSError(errno.EINVAL, "it is a pipe, a device or a link, not a file", str(file))
    if (about.get("size") or 0) > max_bytes:
        raise OSError(errno.EFBIG, f"larger than {max_bytes >> 20} MiB, not copied", str(file))
    target.parent.mkdir(parents=True, exist_ok=True)
    system.get_file(file, str(target))


class RemoteFile(NamedTuple):
    """A file at a URL; ``stamp`` is what its file system gives to tell when it has changed."""

    url: str
    size: int
    stamp: str


def list_files(url: str, depth: int) -> list[RemoteFile]:
    """The files at ``url``: a file, a pattern (``s3://bucket/*/rank*.json``), or a folder down to ``depth`` levels.

    Raises:
        RunError: the URL cannot be read, or does not answer.
        UsageError, MissingDependency: see `local_copy`.
    """
    system, path = _open(url)
    pattern = re.search(r"[*?\[]", path)
    _check_answers(system, path[: pattern.start()].rpartition("/")[0] if pattern else path, url)
    try:
        if pattern:
            matches: dict[str, Any] = system.glob(path, detail=True)
            found = {name: about for name, about in matches.items() if about.get("type") == "file"}
            for name in set(matches) - set(found):
                found |= system.find(name, maxdepth=depth, detail=True)
        else:
            found = system.find(path, maxdepth=depth, detail=True)
    except OSError as error:
        raise RunError(f"{url} cannot be read: {error}") from error
    return [
        RemoteFile(str(system.unstrip_protocol(name)), about.get("size") or 0, _stamp(about))
        for name, about in sorted(found.items())
        if not about.get("islink")
    ]


def _stamp(about: dict[str, Any]) -> str:
    """A file system gives one of these; one that gives none only shows the size."""
    return str(next((about[key] for key in ("etag", "ETag", "mtime", "LastModified", "md5Hash") if key in about), ""))


@contextmanager
def fetched(url: str, size: int | None = None) -> Iterator[Path]:
    """The file at ``url``, or its first ``size`` bytes, under its own name in a folder that lasts as long as this.

    Raises:
        RunError: it cannot be read.
        UsageError, MissingDependency: see `local_copy`.
    """
    system, path = _open(url)
    with tempfile.TemporaryDirectory(prefix="perfkit-") as folder:
        target = Path(folder) / (Path(path).name or "file")
        try:
            if size is None:
                _copy_file(system, path, target, MAX_TRACE_BYTES)
            else:
                target.write_bytes(system.cat_file(path, start=0, end=size))
        except OSError as error:
            raise RunError(f"{url} cannot be read: {error}") from error
        yield target


@contextmanager
def fetched_folder(urls: Sequence[str], name: str) -> Iterator[Path]:
    """These files side by side in a folder of this name; those that do not exist are left out.

    Raises:
        RunError, UsageError, MissingDependency: see `fetched`.
    """
    with tempfile.TemporaryDirectory(prefix="perfkit-") as parent:
        folder = Path(parent) / name
        folder.mkdir()
        for url in urls:
            system, path = _open(url)
            try:
                _copy_file(system, path, folder / Path(path).name, MAX_BYTES)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise RunError(f"{url} cannot be read: {error}") from error
        yield folder


def check_url(url: str) -> None:
    """Refuse a URL that no file system supports, before anything starts.

    Raises:
        UsageError, MissingDependency: see `local_copy`.
    """
    _open(url)


def copy_out(folder: Path, url: str) -> None:
    """Copy the files of a run folder to ``url``.

    Raises:
        OSError, and any error of the file system; the caller reports it.
    """
    system, path = _open(url)
    for file in sorted(folder.rglob("*")):
        name = file.relative_to(folder).as_posix()
        if file.is_file() and not file.name.startswith("."):
            target = f"{path.rstrip('/')}/{name}"
            system.makedirs(target.rsplit("/", 1)[0], exist_ok=True)
            system.put_file(str(file), target)
