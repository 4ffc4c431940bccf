"""``trace_handler``: one window's trace into a log directory, with its diagnosis beside the training curves.

torch.profiler.profile(on_trace_ready=trace_handler("tb"))
perfkit.profile("runs/mnist", handlers=[trace_handler("tb")])
"""

from __future__ import annotations

import gzip
import os
import shutil
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from perfkit import Diagnosis, PerfkitWarning, UsageError
from perfkit._background import BackgroundProcess
from perfkit.integrations.tensorboard.writers import Writer, scalars_of, to_markdown, writer_for

#: Windows whose diagnosis is not finished. A loop that makes them faster than they are read keeps every trace, and
#: leaves out summaries: memory and the wait at the program's end stay bounded.
_MOST_WAITING = 4
#: A trace of two million events takes 12 s; beside a training that needs every core, much longer.
_TIMEOUT_S = 300.0
#: A diagnosis is 100 kB or two.
_LARGEST = 64 * 2**20


def trace_handler(
    logdir: str | os.PathLike[str], worker_name: str | None = None, *, writer: Any = None
) -> TraceHandler:
    """Make an ``on_trace_ready`` handler that writes and diagnoses each window.

    Writes ``<worker>.<unix ns>.pt.trace.json.gz`` into ``logdir``, the name that torch-tb-profiler and
    HTA look for, then what `perfkit.diagnose` finds in it: the text ``perfkit/verdict`` and the scalars
    ``perfkit/step_ms``, ``perfkit/<phase>_ms`` and what else was measured, at the window's last step. Training
    waits only while torch exports the trace; packing and diagnosing are done beside it, by a process of low priority,
    and the program's end waits for the last. Without tensorboard the trace is still written. What fails while
    training runs is told once, as a PerfkitWarning.

    Args:
        logdir: A local folder; made when the first window is written.
        worker_name: Default ``rank<rank>_<host>_<pid>``.
        writer: A SummaryWriter or Lightning logger for text and scalars; default a SummaryWriter on ``logdir``.

    Raises:
        UsageError: ``logdir`` is a file or a URL, the name has a path separator in it, or the writer cannot write.
    """
    if "://" in os.fspath(logdir):
        raise UsageError(f"traces are written to a local folder, got {logdir!r}: write locally and copy afterwards")
    if Path(logdir).exists() and not Path(logdir).is_dir():
        raise UsageError(f"logdir must be a folder, but {logdir} is a file")
    if worker_name is not None and (not worker_name or set(worker_name) & {"/", "\\"}):
        raise UsageError(f"worker_name must be part of a file name, got {worker_name!r}")
    return TraceHandler(Path(logdir), worker_name, writer_for(writer) if writer is not None else None)


class TraceHandler:
    """What `trace_handler` makes: called with the torch profiler of a finished window."""

    def __init__(self, logdir: Path, worker_name: str | None, writer: Writer | None) -> None:
        self._logdir = logdir
        self._worker_name = worker_name
        self._writer = writer
        self._told: set[str] = set()
        self._last: threading.Thread | None = None
        self._waiting = 0

    def __call__(self, profiler: Any) -> None:
        """Have torch export the window's trace; the rest is done beside training."""
        rank, world_size = place_of_process()
        worker = self._worker_name or f"rank{rank}_{socket.gethostname()}_{os.getpid()}"
        path = self._logdir / f"{worker}.{time.time_ns()}.pt.trace.json.gz"
        # Does not end like a trace: a reader that watches the folder never opens half a file.
        plain = path.with_name(f".{path.name}.plain")
        try:
            self._logdir.mkdir(parents=True, exist_ok=True)
            profiler.export_chrome_trace(str(plain))
            if not plain.is_file() or not plain.stat().st_size:
                raise OSError("torch wrote no trace")  # torch says why, on stderr only
        except Exception as error:  # noqa: BLE001 - a full disk must not end training
            _remove(plain)
            self._tell(f"the trace could not be written to {self._logdir}", error)
            return
        # torch counts a step before it hands over the window that ended with it.
        step = max(0, profiler.step_num - 1)
        self._beside(lambda: self._finish(plain, path, rank, world_size, step))

    def wait(self) -> None:
        """Until all windows are written and diagnosed; a program's end does so by itself."""
        if self._last is not None:
            self._last.join()

    def _beside(self, work: Callable[[], None]) -> None:
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
        except RuntimeError:  # at a program's end no thread can start
            in_order()
        else:
            self._last = thread

    def _finish(self, plain: Path, path: Path, rank: int, world_size: int, step: int) -> None:
        try:
            _pack(plain, path, rank, world_size)
        except OSError as error:
            self._tell(f"the trace could not be written to {self._logdir}", error)
            return
        if self._waiting > _MOST_WAITING:
            self._tell("windows come faster than they can be diagnosed", "their traces are kept, some without summary")
            return
        try:
            writer = self._writer = self._writer or _own_writer(self._logdir)
            process = BackgroundProcess(
                "perfkit", "diagnose", str(path.resolve()), "--json", timeout_s=_TIMEOUT_S, max_bytes=_LARGEST
            )
            diagnosis = Diagnosis.from_json(process.output())
            writer.text("perfkit/verdict", to_markdown(diagnosis), step)
            writer.scalars(scalars_of(diagnosis), step)
            writer.flush()
        except ImportError as error:
            self._tell("summaries need tensorboard: pip install 'perfkit[tensorboard]'", error)
        except Exception as error:  # noqa: BLE001 - nothing of perfkit's may end training
            self._tell(f"{path.name} is written, its summary is not", error)

    def _tell(self, text: str, reason: Exception | str) -> None:
        if text not in self._told:
            self._told.add(text)
            why = reason if isinstance(reason, str) else f"{type(reason).__name__}: {reason}"
            warnings.warn(f"perfkit: {text} ({why}); training goes on", PerfkitWarning, stacklevel=3)

    def __getstate__(self) -> dict[str, Any]:
        # A spawned child writes an event file of its own.
        return {**vars(self), "_writer": None, "_last": None, "_waiting": 0}

    def __repr__(self) -> str:
        return f"trace_handler({str(self._logdir)!r})"


def _own_writer(logdir: Path) -> Writer:
    from torch.utils.tensorboard import SummaryWriter

    # One event file for all windows: a second one in a folder may not be followed live.
    return writer_for(SummaryWriter(str(logdir)))


def place_of_process() -> tuple[int, int]:
    """Rank and world size: torch's own word, else the launcher's variables."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank()), int(distributed.get_world_size())
    rank, size = (os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE"))
    return int(rank) if rank.isdigit() else 0, int(size) if size.isdigit() else 1


def _pack(plain: Path, path: Path, rank: int, world_size: int) -> None:
    packed = path.with_name(f".{path.name}.part")
    try:
        with plain.open("rb") as source, gzip.open(packed, "wb", compresslevel=1) as target:
            # Level 1: a little larger than level 9, at a quarter of the processor's time.
            target.write(_with_rank(source.read(2**16), rank, world_size))
            shutil.copyfileobj(source, target, 2**20)
        os.replace(packed, path)
    finally:
        _remove(plain)
        _remove(packed)


def _remove(file: Path) -> None:
    try:
        file.unlink(missing_ok=True)
    except OSError:
        pass  # the folder is gone, or was never one: nothing is left behind there


def _with_rank(head: bytes, rank: int, world_size: int) -> bytes:
    """The beginning of a trace with the rank in it, which HTA asks for; torch writes it where there are several.

    Put into the text, because metadata added to torch's profiler after its window no longer arrives there.
    """
    if b'"distributedInfo"' in head:
        return head
    return head.replace(b"{", b'{\n  "distributedInfo": {"rank": %d, "world_size": %d},' % (rank, world_size), 1)
