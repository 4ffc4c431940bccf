"""Runs and traces at fsspec URLs: copied into a local folder to be read, and copied to a URL when they are finished.

Files from a URL are untrusted: of a run only its known files are fetched, under their own names, and no path leaves the
folder that they are copied into.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
from pathlib import Path
from typing import Any

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


def local_copy(url: str) -> Path:
    """Copy the run or trace at ``url`` into the user's cache folder; returns the path of the copy.

    Raises:
        TraceError: nothing exists at the URL.
        RunError: the URL cannot be read, or is a folder without a run.
        MissingDependency: fsspec needs another package for this kind of URL.
    """
    system, path = _open(url)
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
