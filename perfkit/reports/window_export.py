"""The trace and the stacks of one window in the formats of other tools, without perfkit's own threads."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from perfkit.errors import UsageError
from perfkit.measures.host._python_frames import with_frames
from perfkit.measures.host.folded_stacks import fold_stacks, own_frames
from perfkit.reports.tables import nearest
from perfkit.run.arrays import read_line_times
from perfkit.run.atomic import write_atomically
from perfkit.trace import read_trace
from perfkit.trace.columns import Kind

_CPU, _DEVICE = "self_cpu_time_total", "self_device_time_total"
#: The categories of Python frames.
_PYTHON = ("python_function", "python")
#: torch's names of the metrics; "cuda" and "xpu" are older ones for any device.
_METRICS = {_CPU: _CPU, _DEVICE: _DEVICE, "self_cuda_time_total": _DEVICE, "self_xpu_time_total": _DEVICE}


def export_trace(window: Path, target: Path) -> None:
    """Write the trace of a window, as gzip where the target ends in .gz.

    Raises:
        UsageError: the target cannot be written.
        TraceError: the trace cannot be read.
    """
    trace = read_trace(window)
    text = gzip.decompress(window.read_bytes()) if window.suffix == ".gz" else window.read_bytes()
    own = own_frames(trace)
    if own.any():
        document: Any = msgspec.json.decode(text)
        events = document["traceEvents"]
        frames = [number for number, event in enumerate(events) if event.get("cat") in _PYTHON]
        rows = np.flatnonzero(trace.is_kind(Kind.PYTHON))
        # Where frames could not be read, which event is which row is not known: all are kept.
        if len(frames) == rows.size:
            dropped = set(np.array(frames)[own[rows]].tolist())
            kept = [event for number, event in enumerate(events) if number not in dropped]
            text = msgspec.json.encode({**document, "traceEvents": kept})
    _write(target, gzip.compress(text, 1) if target.suffix == ".gz" else text)


def export_stacks(window: Path, stacks: Path | None, target: Path, metric: str) -> None:
    """Write one line for each stack of a window, or of the step for lines where the window has no Python frames.

    Raises:
        UsageError: neither has Python frames, the metric is unknown, or the target cannot be written.
        TraceError: the trace cannot be read.
    """
    chosen = _METRICS.get(metric)
    if chosen is None:
        raise UsageError(f"metric must be one of {', '.join(_METRICS)}, got {metric!r}{nearest(metric, _METRICS)}")
    trace = read_trace(window)
    if not trace.is_kind(Kind.PYTHON).any() and stacks is not None:
        trace = with_frames(read_trace(stacks), read_line_times(stacks, []))
    if not trace.is_kind(Kind.PYTHON).any():
        raise UsageError(f"{window.name} has no Python stacks: record with perfkit.profile(with_stack=True)")
    if chosen == _DEVICE and not trace.device_rows.size:
        raise UsageError(f"{window.name} has no device work, so {metric} is not known; the default metric is {_CPU}")
    folded = fold_stacks(trace, of_device=chosen == _DEVICE)
    _write(target, "".join(f"{stack} {ns // 1000}\n" for stack, ns in folded.items() if ns >= 1000).encode())


def _write(target: Path, content: bytes) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, content)
    except OSError as error:
        raise UsageError(f"{target} cannot be written: {error.strerror}") from error
