"""``trace_handler``: writes a window's trace into a log directory, and its diagnosis next to the training curves.

torch.profiler.profile(on_trace_ready=trace_handler("tb"))
perfkit.profile("runs/mnist", handlers=[trace_handler("tb")])
"""

from __future__ import annotations

# What the background needs of it cannot be imported while the program ends, and torch 2.4 has not imported it before.
import concurrent.futures.thread  # noqa: F401
import gzip
import os
import shutil
import socket
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from perfkit import Diagnosis, PerfkitWarning, UsageError, _env
from perfkit._background import BackgroundProcess
from perfkit.integrations.tensorboard import summary
from perfkit.integrations.tensorboard.writers import Writer, writer_for

#: Maximum number of windows that wait for their diagnosis. If windows come faster, every trace is written, but some
#: summaries are skipped: memory and the wait at the end of the program stay bounded.
_MAX_WAITING = 4
#: A trace of two million events takes 12 s, and much longer next to a training that needs every core.
_TIMEOUT_S = 300.0


def trace_handler(
    logdir: str | os.PathLike[str], worker_name: str | None = None, *, writer: Any = None
) -> TraceHandler:
    """Make an ``on_trace_ready`` handler that writes and diagnoses each window.

    Writes ``<worker>.<unix ns>.pt.trace.json.gz`` into ``logdir``, the name that torch-tb-profiler and HTA expect, then
    what `perfkit.diagnose` finds in it: the text ``perfkit/verdict`` and the scalars ``perfkit/step_ms``,
    ``perfkit/<phase>_ms`` and others that were measured, at the window's last step. Training waits only while torch
    exports the trace. A thread compresses it and a process of low priority diagnoses it; the end of the program waits
    for the last one. Without tensorboard the trace is still written. Errors during training are reported once, as a
    PerfkitWarning.

    Args:
        logdir: A local folder; created with the first window.
        worker_name: Default ``rank<rank>_<host>_<pid>``.
        writer: A SummaryWriter or Lightning logger for text and scalars; default a SummaryWriter on ``logdir``.

    Raises:
        UsageError: ``logdir`` is a file or a URL, the name contains a path separator, or the writer is none.
    """
    if "://" in os.fspath(logdir):
        raise UsageError(f"traces are written to a local folder, got {logdir!r}: write locally and copy afterwards")
    if Path(logdir).exists() and not Path(logdir).is_dir():
        raise UsageError(f"logdir must be a folder, but {logdir} is a file")
    if worker_name is not None and (not worker_name or set(worker_name) & {"/", "\\"}):
        raise UsageError(f"worker_name must be part of a file name, got {worker_name!r}")
    return TraceHandler(Path(logdir), worker_name, writer_for(writer) if writer is not None else None)


class TraceHandler:
    """The handler of `trace_handler`; called with the torch profiler of a finished window."""

    def __init__(self, logdir: Path, worker_name: str | None, writer: Writer | None) -> None:
        self._logdir = logdir
        self._worker_name = worker_name
        self._writer = writer
        self._warned: set[str] = set()
        self._last: threading.Thread | None = None
        self._waiting = 0

    def __call__(self, profiler: Any) -> None:
        """Let torch export the window's trace; the rest runs in the background."""
        worker = self._worker_name or f"rank{_env.rank()}_{socket.gethostname()}_{os.getpid()}"
        path = self._logdir / f"{worker}.{time.time_ns()}.pt.trace.json.gz"
        # Its name does not end like a trace's, so a reader that watches the folder never opens half a file.
        plain = path.with_name(f".{path.name}.plain")
        try:
            self._logdir.mkdir(parents=True, exist_ok=True)
            profiler.export_chrome_trace(str(plain))
            if not plain.is_file() or not plain.stat().st_size:
                raise OSError("torch wrote no trace")  # torch prints the reason to stderr
        except Exception as error:  # noqa: BLE001 - a full disk must not end training
            _remove(plain)
            self._warn(f"the trace could not be written to {self._logdir}", error)
            return
        # torch counts a step before it calls the handler of the window that ended with it.
        step = max(0, profiler.step_num - 1)
        self._in_background(lambda: self._finish(plain, path, step))

    def wait(self) -> None:
        """Wait until all windows are written and diagnosed; a program's end does so by itself."""
        if self._last is not None:
            self._last.join()

    def _in_background(self, work: Callable[[], None]) -> None:
        before = self._last
        self._waiting += 1

        def in_order() -> None:
            if before is not None:
                before.join()
            try:
                work()
            finally:
                self._waiting -= 1

        thread = threading.Thread(target=in_order, name="perfkit trace handler")
        try:
            thread.start()
        except RuntimeError:  # no thread can start while the program exits
            in_order()
        else:
            self._last = thread

    def _finish(self, plain: Path, path: Path, step: int) -> None:
        try:
            _compress(plain, path)
        except OSError as error:
            self._warn(f"the trace could not be written to {self._logdir}", error)
            return
        if self._waiting > _MAX_WAITING:
            self._warn("windows come faster than they can be diagnosed", "some traces get no summary")
            return
        try:
            process = BackgroundProcess("perfkit", "diagnose", str(path.resolve()), "--json", timeout_s=_TIMEOUT_S)
            self._summarize(process.output(), step)
        except ImportError as error:
            self._warn("summaries need tensorboard: pip install 'perfkit[tensorboard]'", error)
        except Exception as error:  # noqa: BLE001 - an error of perfkit must not end training
            self._warn(f"{path.name} was written, but not its summary", error)

    def _summarize(self, diagnosis: bytes, step: int) -> None:
        try:
            # One event file for all windows: TensorBoard may not follow a second one in a folder.
            self._writer = self._writer or summary.own_writer(self._logdir)
        except RuntimeError:
            # While the program exits no thread can start (Python 3.12), and a SummaryWriter has one.
            with tempfile.NamedTemporaryFile(suffix=".json") as file:
                file.write(diagnosis)
                file.flush()
                arguments = (file.name, str(self._logdir.resolve()), str(step))
                BackgroundProcess(summary.__name__, *arguments, timeout_s=_TIMEOUT_S).output()
        else:
            summary.write_summary(self._writer, Diagnosis.from_json(diagnosis), step)

    def _warn(self, text: str, reason: Exception | str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            why = reason if isinstance(reason, str) else f"{type(reason).__name__}: {reason}"
            warnings.warn(f"perfkit: {text} ({why}); training continues", PerfkitWarning, stacklevel=3)

    def __getstate__(self) -> dict[str, Any]:
        # A spawned process writes its own event file.
        return {**vars(self), "_writer": None, "_last": None, "_waiting": 0}

    def __repr__(self) -> str:
        return f"trace_handler({str(self._logdir)!r})"


def _compress(plain: Path, path: Path) -> None:
    packed = path.with_name(f".{path.name}.part")
    try:
        # Level 1: a little larger than level 9, in a quarter of the time.
        with plain.open("rb") as source, gzip.open(packed, "wb", compresslevel=1) as target:
            target.write(_with_rank(source.read(2**16)))
            shutil.copyfileobj(source, target, 2**20)
        os.replace(packed, path)
    finally:
        _remove(plain)
        _remove(packed)


def _remove(file: Path) -> None:
    try:
        file.unlink(missing_ok=True)
    except OSError:
        pass  # the folder does not exist, so neither does the file


def _with_rank(head: bytes) -> bytes:
    """The beginning of a trace with the rank, which HTA needs; torch writes it only if there are several ranks.

    Inserted into the text, because metadata that is added to torch's profiler after a window does not reach its trace.
    """
    if b'"distributedInfo"' in head:
        return head
    info = b'{\n  "distributedInfo": {"rank": %d, "world_size": %d},' % (_env.rank(), _env.world_size())
    return head.replace(b"{", info, 1)
