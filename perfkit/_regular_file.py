"""Opening a file that anyone may have put there: only regular files, in their folder, up to a size.

A pipe would block its reader for ever, a device such as /dev/zero has no end, and a link may lead to any file of the
machine that reads.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

#: A pipe that has replaced a file must not block; Windows has neither this nor pipes with a path.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOCTTY", 0)


def open_regular(
    path: str | os.PathLike[str], *, inside: str | os.PathLike[str] | None = None, max_bytes: int | None = None
) -> BinaryIO:
    """Open a file for reading.

    Args:
        path: The file.
        inside: The folder that it must lie in, wherever links in its path lead. None: a file that the user named.
        max_bytes: The largest file that is opened. None: any.

    Raises:
        OSError: it cannot be opened, is no regular file, is larger, or a link leads out of the folder; ``strerror``
            says which.
    """
    # Without links, also not one that is put there now; but a file that is replaced by a newer one is read.
    real = os.path.realpath(path) if inside is not None else path
    # Asked before it is opened, because opening a device can act on it, and again of what was opened.
    _check_regular(os.stat(real), path)
    handle = os.open(real, _FLAGS if inside is None else _FLAGS | getattr(os, "O_NOFOLLOW", 0))
    try:
        status = os.fstat(handle)
        _check_regular(status, path)
        if max_bytes is not None and status.st_size > max_bytes:
            raise _too_large(path, max_bytes)
        if inside is not None and not Path(os.path.realpath(real)).is_relative_to(os.path.realpath(inside)):
            raise OSError(
                errno.EPERM, "a link leads out of the folder: copy the folder with its files (cp -rL)", str(path)
            )
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def read_regular(
    path: str | os.PathLike[str], max_bytes: int, *, inside: str | os.PathLike[str] | None = None
) -> bytes:
    """Read a file of at most ``max_bytes``.

    Raises:
        OSError: as `open_regular`, or it is larger.
    """
    with open_regular(path, inside=inside, max_bytes=max_bytes) as file:
        # Memory for what it holds: that for ``max_bytes`` takes longer to get than a small file to read.
        size = os.fstat(file.fileno()).st_size
        data = file.read(size + 1)
        if len(data) > size:  # it grew, or has no size before it is read, as files of /proc
            data += file.read(max_bytes + 1 - len(data))
    if len(data) > max_bytes:
        raise _too_large(path, max_bytes)
    return data


def _too_large(path: str | os.PathLike[str], max_bytes: int) -> OSError:
    return OSError(errno.EFBIG, f"larger than {max_bytes >> 20} MiB, not read", str(path))


def _check_regular(status: os.stat_result, path: str | os.PathLike[str]) -> None:
    if not stat.S_ISREG(status.st_mode):
        kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
        kind = kinds.get(stat.S_IFMT(status.st_mode), "a device")
        raise OSError(errno.EINVAL, f"it is {kind}, not a file", str(path))
