"""The folder in which a rerun works: it shows the user's current folder, and what is written there stays there.

Folders are real, and those above are shown too, so that ``..``, `os.walk` and `Path.rglob` work as in the user's. Files
are links, and Python files are copies, because programs make paths from ``Path(__file__).resolve()``. A folder beyond
the limit, as one with a million images, is one link. What would be written through a link is made the rerun's own
first: the file is copied, or the folder becomes a real one that shows its entries. (An overlay of the file system would
need rights that users seldom have, and a copy of everything would copy the data set.)
"""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib.machinery import SourceFileLoader
from itertools import islice
from pathlib import Path
from types import CodeType
from typing import Any

from perfkit._patches import Patches

#: Entries that are shown one by one before larger folders become one link: 0.14 ms of processor time each, measured.
_MAX_ENTRIES = 2000
#: Entries of a single folder that the program writes into: some seconds, once.
_MAX_OWNED = 25_000
#: The largest Python file, and the largest file of any kind, that is copied: 1 GiB takes about a second.
_MAX_SOURCE_BYTES, _MAX_COPIED_BYTES = 1 << 20, 1 << 30
#: Folders that programs seldom read, and never make paths from: each is one link.
_ONE_LINK = frozenset({"node_modules", "site-packages"})


#: What is replaced stays replaced until the process ends.
_patches = Patches()


class CannotOwn(Exception):
    """What the program writes to is too large to become the rerun's own; the text says what."""


class WorkFolder:
    """``root`` shows the file system around ``source``, the user's current folder; the program works in `work`.

    Absolute paths below the user's current folder lead to the user's files, relative ones to what is shown here.
    """

    def __init__(self, source: Path, root: Path) -> None:
        self.source = source
        self.root = root
        self.work = root / source.relative_to(source.anchor)

    def user_path(self, path: str) -> str:
        """The user's path of what is shown under ``path``; another path as it is."""
        return path.removeprefix(str(self.root)) if path.startswith(f"{self.root}{os.sep}") else path

    def name_sources(self) -> None:
        """In this process, give code from here the user's file names: reports and tracebacks show them.

        ``__file__`` is still the path in this folder, so that paths made from it lead here.
        """
        original = SourceFileLoader.source_to_code

        def source_to_code(loader: SourceFileLoader, data: Any, path: Any, **options: Any) -> CodeType:
            return original(loader, data, self.user_path(os.fsdecode(path)), **options)

        _patches.set(SourceFileLoader, "source_to_code", source_to_code)

    def make(self) -> None:
        """Make it: the shallowest folders are shown first.

        Raises:
            OSError: the user's current folder cannot be read.
        """
        self.root.mkdir()
        for folder, child in zip(reversed(self.source.parents), self.source.parts[1:], strict=True):
            into = self.root / folder.relative_to(folder.anchor)
            for entry in _entries(folder, _MAX_ENTRIES) or ():
                if entry.name != child:
                    os.symlink(entry.path, into / entry.name)
            (into / child).mkdir()
        with os.scandir(self.source) as entries:
            waiting = deque(self._show_all(entries, self.work))
        left = _MAX_ENTRIES
        while waiting:
            folder, into = waiting.popleft()
            shown = _entries(folder, left)
            if shown is None:
                into.symlink_to(folder)
                continue
            left -= len(shown)
            into.mkdir()
            waiting.extend(self._show_all(shown, into))

    def _show_all(self, entries: Iterable[os.DirEntry[str]], into: Path) -> Iterator[tuple[Path, Path]]:
        """Show the files among them; returns the folders, and where each is to be shown."""
        for entry in entries:
            if _is_walked(entry, self.work):
                yield Path(entry.path), into / entry.name
            elif entry.name != "__pycache__":  # its code has the names of other files
                _show(entry, into)

    def own(self, path: str, *, follow: bool, keep: bool = True) -> None:
        """Make the folders above a path of this folder, and with ``follow`` the file or folder itself, the rerun's own.

        Args:
            path: An absolute path below the root.
            follow: Whether what the path links to would be changed; else the link itself is.
            keep: Whether the file's content is needed.

        Raises:
            CannotOwn: the folder has too many entries, or the file is too large.
        """
        at = str(self.root)
        *above, last = os.path.relpath(path, at).split(os.sep)
        for name in above:
            at = os.path.join(at, name)
            if self._is_foreign(at):
                self._replace(at, keep=True)
        path = os.path.join(at, last)
        if follow and self._is_foreign(path):
            self._replace(path, keep=keep)

    def _is_foreign(self, path: str) -> bool:
        """Whether it is a link that leads out of the rerun's folder."""
        return os.path.islink(path) and not os.path.realpath(path).startswith(f"{self.root.parent}{os.sep}")

    def _replace(self, link: str, *, keep: bool) -> None:
        with _alone(self.root.with_name("root.lock")):
            if not self._is_foreign(link):
                return  # another process was faster
            target = os.path.realpath(link)
            part = f"{self.root}.part-{os.getpid()}"
            if os.path.isdir(target):
                entries = _entries(Path(target), _MAX_OWNED)
                if entries is None:
                    raise CannotOwn(f"a folder of more than {_MAX_OWNED} entries")
                os.mkdir(part)
                for entry in entries:
                    _show(entry, Path(part))
                # No call replaces a link by a folder in one step: a reader could miss it for some microseconds.
                os.unlink(link)
            elif keep and os.path.exists(target):
                if os.path.getsize(target) > _MAX_COPIED_BYTES:
                    raise CannotOwn(f"a file of more than {_MAX_COPIED_BYTES >> 30} GiB")
                shutil.copy2(target, part)
            else:
                os.unlink(link)
                return
            os.rename(part, link)


def _is_walked(entry: os.DirEntry[str], work: Path) -> bool:
    return (
        entry.is_dir(follow_symlinks=False)
        and not entry.name.startswith(".")
        and entry.name not in _ONE_LINK
        and entry.name != "__pycache__"
        and not work.is_relative_to(entry.path)
        and not os.path.exists(os.path.join(entry.path, "pyvenv.cfg"))
    )


def _show(entry: os.DirEntry[str], into: Path) -> None:
    shown = into / entry.name
    if entry.name.endswith(".py"):
        with suppress(OSError):  # a link to nothing, or not readable
            if entry.is_file() and entry.stat().st_size <= _MAX_SOURCE_BYTES:
                shutil.copy2(entry.path, shown)
                return
    os.symlink(entry.path, shown)


def _entries(folder: Path, limit: int) -> list[os.DirEntry[str]] | None:
    """The entries of a folder; None where it has more, or cannot be read."""
    try:
        with os.scandir(folder) as entries:
            found = list(islice(entries, limit + 1))
    except OSError:
        return None
    return None if len(found) > limit else found


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """The program's processes, one at a time."""
    import fcntl  # Windows has no such module

    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
