"""``trace_handler``: one window's trace into a log directory, with its diagnosis beside the training curves.

torch.profiler.profile(on_trace_ready=trace_handler("tb"))
perfkit.profile("runs/mnist", handlers=[trace_handler("tb")])
"""

from __future__ import annotations

import gzip
import os
import re
import shutil
import socket
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import perfkit
from perfkit import Diagnosis, Finding, PerfkitWarning, UsageError

#: Findings in the table; the diagnosis of the trace has all of them.
_SHOWN = 10
#: Characters of a text that came from the trace; a kernel's name can be a page of template arguments.
_LONGEST = 300


def trace_handler(logdir: str | os.PathLike[str], worker_name: str | None = None) -> TraceHandler:
    """Make an ``on_trace_ready`` handler that writes and diagnoses each window.

    Writes ``<worker>.<unix ns>.pt.trace.json.gz`` into ``logdir``, the name that torch-tb-profiler and
    HTA look for, then what `perfkit.diagnose` finds in it: the text ``perfkit/verdict`` and the scalars
    ``perfkit/step_ms`` and ``perfkit/<phase>_ms``, at the window's last step. Without tensorboard the
    trace is still written. What fails while training runs is told once, as a PerfkitWarning.

    Args:
        logdir: A local folder; made when the first window is written.
        worker_name: Default ``rank<rank>_<host>_<pid>``.

    Raises:
        UsageError: ``logdir`` is a file or a URL, or the name has a path separator in it.
    """
    if "://" in os.fspath(logdir):
        raise UsageError(f"traces are written to a local folder, got {logdir!r}: write locally and copy afterwards")
    if Path(logdir).exists() and not Path(logdir).is_dir():
        raise UsageError(f"logdir must be a folder, but {logdir} is a file")
    if worker_name is not None and (not worker_name or set(worker_name) & {"/", "\\"}):
        raise UsageError(f"worker_name must be part of a file name, got {worker_name!r}")
    return TraceHandler(Path(logdir), worker_name)


class TraceHandler:
    """What `trace_handler` makes: called with the torch profiler of a finished window."""

    def __init__(self, logdir: Path, worker_name: str | None) -> None:
        self._logdir = logdir
        self._worker_name = worker_name
        self._writer: Any = None
        self._told: set[str] = set()

    def __call__(self, profiler: Any) -> None:
        """Write the window's trace, and the summary of its diagnosis."""
        try:
            path = self._write_trace(profiler)
        except Exception as error:  # noqa: BLE001 - a full disk must not end training
            self._tell(f"the trace could not be written to {self._logdir}", error)
            return
        try:
            # torch counts a step before it hands over the window that ended with it.
            self._write_summary(perfkit.diagnose(path), max(0, profiler.step_num - 1))
        except ImportError as error:
            self._tell("summaries need tensorboard: pip install 'perfkit[tensorboard]'", error)
        except Exception as error:  # noqa: BLE001 - nothing of perfkit's may end training
            self._tell(f"{path.name} is written, its summary is not", error)

    def _write_trace(self, profiler: Any) -> Path:
        self._logdir.mkdir(parents=True, exist_ok=True)
        rank, world_size = _place()
        worker = self._worker_name or f"rank{rank}_{socket.gethostname()}_{os.getpid()}"
        path = self._logdir / f"{worker}.{time.time_ns()}.pt.trace.json.gz"
        # Neither name ends like a trace: a reader that watches the folder never opens half a file.
        plain, packed = (path.with_name(f".{path.name}.{ending}") for ending in ("plain", "part"))
        try:
            profiler.export_chrome_trace(str(plain))
            if not plain.is_file() or not plain.stat().st_size:
                raise OSError("torch wrote no trace")  # torch says why, on stderr only
            with plain.open("rb") as source, gzip.open(packed, "wb", compresslevel=1) as target:
                # Level 1, because training waits: a little larger than level 9, in a quarter of the time.
                target.write(_with_rank(source.read(2**16), rank, world_size))
                shutil.copyfileobj(source, target, 2**20)
            os.replace(packed, path)
        finally:
            plain.unlink(missing_ok=True)
            packed.unlink(missing_ok=True)
        return path

    def _write_summary(self, diagnosis: Diagnosis, step: int) -> None:
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            # One event file for all windows: a second one in a folder may not be followed live.
            self._writer = SummaryWriter(str(self._logdir))
        self._writer.add_text("perfkit/verdict", to_markdown(diagnosis), step)
        for name, ns in _times(diagnosis).items():
            self._writer.add_scalar(f"perfkit/{name}_ms", ns / 1e6, step)
        self._writer.flush()

    def _tell(self, text: str, error: Exception) -> None:
        if text not in self._told:
            self._told.add(text)
            message = f"perfkit: {text} ({type(error).__name__}: {error}); training goes on"
            warnings.warn(message, PerfkitWarning, stacklevel=3)

    def __getstate__(self) -> dict[str, Any]:
        # A spawned child writes an event file of its own.
        return {**vars(self), "_writer": None}

    def __repr__(self) -> str:
        return f"trace_handler({str(self._logdir)!r})"


def _place() -> tuple[int, int]:
    """Rank and world size: torch's own word, else the launcher's variables."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank()), int(distributed.get_world_size())
    rank, size = (os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE"))
    return int(rank) if rank.isdigit() else 0, int(size) if size.isdigit() else 1


def _with_rank(head: bytes, rank: int, world_size: int) -> bytes:
    """The beginning of a trace with the rank in it, which HTA asks for; torch writes it where there are several.

    Put into the text, because metadata added to torch's profiler after its window no longer arrives there.
    """
    if b'"distributedInfo"' in head:
        return head
    return head.replace(b"{", b'{\n  "distributedInfo": {"rank": %d, "world_size": %d},' % (rank, world_size), 1)


def _times(diagnosis: Diagnosis) -> dict[str, int]:
    """Mean time per step in ns: the whole step, and each phase that the trace can tell."""
    if diagnosis.step is None:
        return {}
    phases = diagnosis.step.phases_ns
    known = {name: getattr(phases, name) for name in phases.__struct_fields__}
    return {"step": diagnosis.step.wall_ns, **{name: ns for name, ns in known.items() if ns is not None}}


def to_markdown(diagnosis: Diagnosis) -> str:
    """The verdict, and the findings as a table, in the markdown that TensorBoard shows."""
    lines = [f"**{_escape(diagnosis.verdict)}**"]
    findings = [finding for finding in diagnosis.findings if finding.caused_by is None]
    if findings:
        lines += ["", "| finding | where | lost per step | what | change |", "|---|---|---|---|---|"]
        lines += [_row(finding) for finding in findings[:_SHOWN]]
    lines += ["", *(f"- not seen: {_escape(sentence)}" for sentence in diagnosis.missing)]
    return "\n".join(lines)


def _row(finding: Finding) -> str:
    where = f"{finding.file}:{finding.line}" if finding.file is not None else finding.range or ""
    lost = f"{finding.lost_ns / 1e6:.2f} ms" if finding.lost_ns is not None else "no price here"
    cells = (finding.rule, where, lost, finding.message, finding.advice)
    return "| " + " | ".join(_escape(cell) for cell in cells) + " |"


def _escape(text: str) -> str:
    """Text as it is, in markdown: names in a trace are anybody's, and may hold markup, links or HTML."""
    shortened = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    plain = " ".join(shortened.split())
    plain = plain.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|])", r"\\\1", plain)
