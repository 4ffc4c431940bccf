"""A name on the command line -> a `concurrent.futures.Executor`: processes of this machine, a Dask or a Ray cluster."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from types import ModuleType
from typing import Any, NoReturn
from urllib.parse import urlsplit

from perfkit._env import cores
from perfkit.errors import MissingDependency, RunError, UsageError

#: Seconds until an address counts as one where nothing listens, and until a scheduler has answered.
_CONNECT_S, _ANSWER_S = 4.0, 5.0
_SPELLINGS = "processes, processes:N, dask:HOST:PORT, ray:auto or ray:HOST:PORT"


class Processes(ProcessPoolExecutor):
    """Processes of this machine that share nothing with this one: threads or CUDA in it do them no harm.

    Args:
        count: How many; by default one for each core.
    """

    def __init__(self, count: int | None = None) -> None:
        self.count = count or cores()
        super().__init__(self.count, mp_context=get_context("spawn"), initializer=_end_with_parent)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        # A new process would run the main file again, also of a program without `if __name__ == "__main__":`. It is
        # started in this call, and gets no file of a main module that has none.
        program = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            return super().submit(fn, *args, **kwargs)
        finally:
            sys.modules["__main__"] = program


def _end_with_parent() -> None:
    """End silently at Ctrl-C, which reaches the whole process group, and when the process that began this is killed."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    parent = parent_process()
    assert parent is not None, "it runs in the processes of a pool"

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


@contextmanager
def open_executor(name: str | None) -> Iterator[Executor | None]:
    """The executor of this name, which ends with this; None for none, where the default is taken.

    Raises:
        UsageError: no executor has this name.
        MissingDependency: it needs a package that is not installed; the message has the extra.
        RunError: nothing answers at its address.
    """
    kind, _, address = (name or "").partition(":")
    if name is None:
        yield None
    elif kind == "processes" and re.fullmatch(r"|[1-9]\d{0,3}", address):
        with Processes(int(address) if address else None) as processes:
            yield processes
    elif kind == "dask" and address:
        with _dask(address) as cluster:
            yield cluster
    elif kind == "ray" and address:
        with _ray(address) as cluster:
            yield cluster
    else:
        raise UsageError(f"--on takes {_SPELLINGS}, got {name!r}")


@contextmanager
def _dask(address: str) -> Iterator[Executor]:
    """The workers of a Dask scheduler."""
    try:
        import distributed  # an extra
    except ImportError as error:
        raise MissingDependency(
            f"dask:{address} needs Dask, which is not installed here: pip install 'perfkit[dask]'"
        ) from error
    # Without encryption a scheduler speaks first; a client of something else, which is silent, waits for ever.
    _check_listens(address, "start a scheduler with `dask scheduler`", speaks=not address.startswith("tls:"))
    connect: Any = distributed.Client  # partly typed
    try:
        client = connect(address, timeout=_ANSWER_S, set_as_default=False)
    except (OSError, ValueError) as error:
        _refuse(address, "no Dask scheduler", error)
    with client:
        # Two calls for equal ranks are two calls: a file may have changed.
        yield client.get_executor(pure=False)


@contextmanager
def _ray(address: str) -> Iterator[Executor]:
    """The workers of a Ray cluster."""
    try:
        import ray  # an extra
    except ImportError as error:
        raise MissingDependency(
            f"ray:{address} needs Ray, which is not installed here: pip install 'perfkit[ray]'"
        ) from error
    if address != "auto":
        _check_listens(address, "start a cluster with `ray start --head`")
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, OSError, RuntimeError) as error:
        _refuse(address, "no Ray cluster", error)
    try:
        yield _RayTasks(ray)
    finally:
        ray.shutdown()


class _RayTasks(Executor):
    """Ray's tasks as futures."""

    def __init__(self, ray: Any) -> None:
        # An error of a call is raised to the caller; a call whose worker died is repeated, at most three times.
        self._call = ray.remote(max_retries=3)(_call)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        found: Future[Any] = self._call.remote(fn, args, kwargs).future()
        return found


def _call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return function(*args, **kwargs)


def _check_listens(address: str, advice: str, *, speaks: bool = False) -> None:
    """Refuse an address where nothing listens (or ``speaks``), which the packages find out after 30 s and more.

    Raises:
        UsageError: it is not an address.
        RunError: nothing answers there.
    """
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or port is None:
        raise UsageError(f"{address} is not an address: write it as HOST:PORT")
    try:
        with socket.create_connection((host, port), timeout=_CONNECT_S) as connection:
            if speaks and not connection.recv(1):
                raise ConnectionResetError("it ended the connection")
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        raise RunError(f"nothing answers at {address} ({reason}): {advice}") from error


def _refuse(address: str, what: str, error: Exception) -> NoReturn:
    reason = " ".join(str(error).split())[:300]
    raise RunError(f"{what} answers at {address}: {reason}") from error
