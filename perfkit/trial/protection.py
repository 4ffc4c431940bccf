"""Keeps a rerun from changing anything but its own folder.

A trial runs a program several times, two at once. Its checkpoints, logs and databases must stay as the user's own run
has left them. So a rerun works in a folder of its own (`perfkit.trial.work_folder`), and what it would write elsewhere
ends it, with the path and the line: then perfkit cannot try this program as it is.

Python's audit events see files, folders, SQLite databases and connections. `torch.save` and others write in C++, and
are checked by name. Other libraries' C code, programs that are no Python, and what is sent to a server are not seen.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from perfkit import _env, _import_hook
from perfkit._callsite import find_callsite
from perfkit._patches import Patches
from perfkit.trial.processes import PLAN_VARIABLE
from perfkit.trial.work_folder import CannotOwn, WorkFolder

#: Set in a rerun's environment: trackers record nothing, or into the rerun's folder. Sources: the trackers' own
#: documentation of their variables, 2026-11.
QUIET_TRACKERS = {
    "WANDB_MODE": "disabled",
    "SWANLAB_MODE": "disabled",
    "COMET_START_ONLINE": "0",
    "NEPTUNE_MODE": "offline",
    "CLEARML_OFFLINE_MODE": "1",
    "DVC_STUDIO_OFFLINE": "true",
    "MLFLOW_TRACKING_URI": "file:./mlruns",
}
#: Variables that name a folder of caches, and the places of caches below the home folder.
_CACHE_VARIABLES = (
    "XDG_CACHE_HOME",
    "HF_HOME",
    "HF_HUB_CACHE",
    "HF_DATASETS_CACHE",
    "TORCH_HOME",
    "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR",
    "CUDA_CACHE_PATH",
    "NUMBA_CACHE_DIR",
    "MPLCONFIGDIR",
    "WANDB_CACHE_DIR",
    _env.CACHE_VARIABLE,
)
_CACHES = (".cache", ".config", ".nv", ".triton", "Library/Caches")
#: Ports of databases: PostgreSQL, MySQL, SQL Server, MongoDB, Redis.
_DATABASES = frozenset({5432, 3306, 1433, 27017, 6379})
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC


class Refusal(BaseException):
    """The program would have changed something that is not the rerun's; no ``except Exception`` stops it."""


class _Change(NamedTuple):
    """What an audit event changes: the positions of the path, and of its folder's descriptor, among the arguments.

    With ``follows`` it changes what the path links to, else the link.
    """

    path: int
    folder: int | None = None
    follows: bool = False


_CHANGES: dict[str, tuple[_Change, ...]] = {
    "os.mkdir": (_Change(0, 2),),
    "os.rmdir": (_Change(0, 1),),
    "os.remove": (_Change(0, 1),),
    "os.rename": (_Change(0, 2), _Change(1, 3)),
    "os.link": (_Change(0, 2, follows=True), _Change(1, 3)),  # what has two names is changed under both
    "os.symlink": (_Change(1, 2),),
    "os.truncate": (_Change(0, follows=True),),
    "os.chmod": (_Change(0, 2, follows=True),),
    "os.chown": (_Change(0, 3, follows=True),),
    "os.utime": (_Change(0, 3, follows=True),),
    "shutil.rmtree": (_Change(0, 1, follows=True),),
}


class _Writer(NamedTuple):
    """A function whose C code writes: its module, its name there, and where its path is among the arguments."""

    module: str
    name: str
    position: int
    keyword: str
    #: Whether what the file held before is needed; None: it is only read.
    keeps: Callable[[tuple[Any, ...], dict[str, Any]], bool | None] = lambda given, named: False


def _keeps_h5(given: tuple[Any, ...], named: dict[str, Any]) -> bool | None:
    mode = named.get("mode", (*given, "r", "r")[2])
    return None if mode == "r" else mode != "w"


def _keeps_duckdb(given: tuple[Any, ...], named: dict[str, Any]) -> bool | None:
    return None if named.get("read_only", (*given, False, False)[1]) else True


_WRITERS = (
    _Writer("torch", "save", 1, "f"),
    _Writer("torch", "jit.save", 1, "f"),
    _Writer("safetensors", "serialize_file", 1, "filename"),
    _Writer("h5py", "File.__init__", 1, "name", _keeps_h5),
    _Writer("cv2", "imwrite", 0, "filename"),
    _Writer("pyarrow.parquet", "ParquetWriter.__init__", 1, "where"),
    _Writer("duckdb", "connect", 0, "database", _keeps_duckdb),
)
#: Functions whose C code connects to a database.
_CONNECTIONS = (("psycopg2", "connect"), ("psycopg", "connect"), ("mysql.connector", "connect"))


class Protection:
    """What one rerun may change; `check` is asked about each audit event of `events`."""

    def __init__(self, shown: WorkFolder, writable: tuple[str, ...] = ()) -> None:
        self._folder = folder = shown.root.parent
        self._shown = shown
        # The system's caches and devices are anyone's; the folder of the program never is, wherever it lies.
        allowed: tuple[str | Path, ...] = (folder, tempfile.gettempdir(), "/dev", "/proc", *writable, *_cache_folders())
        rules = {os.path.realpath(path): True for path in allowed}
        rules.setdefault(os.path.realpath(shown.source), False)
        #: Folders and whether they may be changed, the innermost first.
        self._rules = sorted(rules.items(), key=lambda rule: -len(rule[0]))
        self.events: dict[str, Callable[[str, tuple[Any, ...]], None]] = {
            "open": self._check_open,
            "os.chdir": self._check_folder_change,
            "builtins.input": self._check_input,
            "socket.connect": self._check_connection,
            "sqlite3.connect": self._check_sqlite,
            **dict.fromkeys(_CHANGES, self._check_change),
        }

    def check(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Look at one event.

        Raises:
            Refusal: the program may not do this. Nothing else is ever raised.
        """
        try:
            self.events[event](event, arguments)
        except Exception:  # noqa: BLE001 - what cannot be looked at is the program's own error, which it will see
            return

    def check_write(self, path: Any, *, keep: bool) -> None:
        """As `check`, for a function that is about to write the file; what is no path is an open file."""
        try:
            if isinstance(path, str | bytes | os.PathLike):
                self._check_path(path, follow=True, keep=keep)
        except Exception:  # noqa: BLE001 - as above
            return

    def refuse(self, what: str) -> None:
        """End the program, and write down why: it may yet catch the error, or this is a worker.

        Raises:
            Refusal: always.
        """
        place = find_callsite(sys._getframe(1))
        source = f"{self._shown.source}{os.sep}"
        where = f"{place.file.removeprefix(source)}:{place.line}" if place is not None else "a library"
        message = f"{where} {what}"
        try:
            with open(self._folder / "ending-refused.json", "x", encoding="utf-8") as file:
                json.dump({"ending": "refused", "message": message}, file)
        except FileExistsError:
            pass  # the first one counts
        raise Refusal(message)

    # -- events

    def _check_open(self, event: str, arguments: tuple[Any, ...]) -> None:
        path, _, flags = arguments
        if flags & _WRITES and not isinstance(path, int):
            self._check_path(path, follow=True, keep=not flags & os.O_TRUNC)

    def _check_change(self, event: str, arguments: tuple[Any, ...]) -> None:
        for change in _CHANGES[event]:
            path = arguments[change.path]
            if isinstance(path, int):
                continue
            folder = arguments[change.folder] if change.folder is not None and change.folder < len(arguments) else None
            if isinstance(folder, int) and folder >= 0:
                path = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), os.fsdecode(path))
            self._check_path(path, follow=change.follows)

    def _check_folder_change(self, event: str, arguments: tuple[Any, ...]) -> None:
        """What a program writes under a relative path later must be in the rerun's folder."""
        path = os.path.abspath(os.fsdecode(arguments[0]))
        if self._is_shown(path):
            self._shown.own(path, follow=True)

    def _check_input(self, event: str, arguments: tuple[Any, ...]) -> None:
        self.refuse("asks for input, which a rerun does not have: give it as an argument of the program")

    def _check_connection(self, event: str, arguments: tuple[Any, ...]) -> None:
        address = arguments[1]
        if isinstance(address, tuple) and address[1] in _DATABASES:
            self.refuse(f"connects to the database at {address[0]}:{address[1]}, which a rerun must not change")

    def _check_sqlite(self, event: str, arguments: tuple[Any, ...]) -> None:
        path = os.fsdecode(arguments[0])
        if path.startswith("file:"):
            parts = urlsplit(path)
            options = parse_qs(parts.query)
            if {"ro", "memory"} & set(options.get("mode", ())) or "1" in options.get("immutable", ()):
                return
            path = unquote(parts.path)
        if path not in ("", ":memory:"):
            self._check_path(path, follow=True)

    # -- paths

    def _check_path(self, given: str | bytes | os.PathLike[Any], *, follow: bool, keep: bool = True) -> None:
        path = os.path.abspath(os.fsdecode(given))
        try:
            if self._is_shown(path):
                self._shown.own(path, follow=follow, keep=keep)
        except CannotOwn as error:
            self._refuse_path(path, f" ({error})")
        except OSError:
            pass  # as where the disk is full: what is still a link to the user's file is refused below
        above, name = os.path.split(path)
        real = os.path.realpath(path) if follow else os.path.join(os.path.realpath(above), name)
        if not self._may_change(real):
            self._refuse_path(real)

    def _refuse_path(self, path: str, what: str = "") -> None:
        self.refuse(
            f"writes {path}{what}, which is not the rerun's: use a relative path, or allow it with "
            f"--allow-writes {os.path.dirname(path)}"
        )

    def _is_shown(self, path: str) -> bool:
        return path.startswith(f"{self._shown.root}{os.sep}")

    def _may_change(self, path: str) -> bool:
        if "__pycache__" in path:
            return True
        inside = (may for folder, may in self._rules if path == folder or path.startswith(folder.rstrip("/") + os.sep))
        return next(inside, False)


def _cache_folders() -> Iterator[str]:
    for variable in _CACHE_VARIABLES:
        if named := os.environ.get(variable):
            yield named
    home = os.path.expanduser("~")
    for name in _CACHES:
        yield os.path.join(home, name)


def protect_process() -> None:
    """Protect this process and all that it forks for as long as they run, where it belongs to a rerun; else nothing."""
    global _protected
    plan = os.environ.get(PLAN_VARIABLE)
    if plan is None or _protected:
        return
    _protected = True
    task = json.loads(Path(plan).read_text(encoding="utf-8"))
    shown = WorkFolder(Path(task["source"]), Path(plan).with_name("root"))
    shown.name_sources()
    protection = Protection(shown, tuple(task["program"].get("writable", ())))
    _watch_writers(protection)
    sys.addaudithook(_hook_of(protection))


_protected = False
#: What is replaced stays replaced until the process ends.
_patches = Patches()


def _hook_of(protection: Protection) -> Callable[[str, tuple[Any, ...]], None]:
    events = protection.events
    here = threading.local()

    # Called for each audit event, of which a program may have a million.
    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        # What the check itself opens is not looked at.
        if event in events and not getattr(here, "busy", False):
            here.busy = True
            try:
                protection.check(event, arguments)
            finally:
                here.busy = False

    return hook


def _watch_writers(protection: Protection) -> None:
    for writer in _WRITERS:
        _import_hook.when_imported(writer.module, functools.partial(_watch_writer, protection, writer))
    for module, name in _CONNECTIONS:
        _import_hook.when_imported(module, functools.partial(_watch_connection, protection, module, name))


def _watch_writer(protection: Protection, writer: _Writer) -> None:
    def wrapper(write: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(write)
        def checked_write(*given: Any, **named: Any) -> Any:
            path = named.get(writer.keyword, given[writer.position] if len(given) > writer.position else None)
            keeps = writer.keeps(given, named)
            if keeps is not None:
                protection.check_write(path, keep=keeps)
            return write(*given, **named)

        return checked_write

    *owners, name = writer.name.split(".")
    _patches.wrap(functools.reduce(getattr, owners, import_module(writer.module)), name, wrapper)


def _watch_connection(protection: Protection, module: str, name: str) -> None:
    def wrapper(connect: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(connect)
        def checked_connect(*given: Any, **named: Any) -> Any:
            protection.refuse(f"connects to a database through {module}, which a rerun must not change")
            return connect(*given, **named)

        return checked_connect

    _patches.wrap(import_module(module), name, wrapper)
