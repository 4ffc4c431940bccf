"""How the peak of a step's memory follows its batch, and whether a batch that was never run would fit."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from perfkit.errors import RunError
from perfkit.measures.results.batch_fit import BatchFit, FitAnswer
from perfkit.measures.results.measurements import Measurements
from perfkit.measures.results.peak_memory import PeakMemory
from perfkit.run.records import MemoryLine, Rank, Sweep

#: Share of the memory that a batch should leave: above 90 % the allocator has to search, split and release blocks, and
#: a slightly longer batch ends the run (the rule memory-near-limit, and its source).
RESERVE = 0.10
#: Fewer points always lie on a line.
_LINE_POINTS = 3
#: Student's t, 97.5 %, for 1 to 10 degrees of freedom; 1.96 + 2.4 / degrees is within 1 % from there on.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


def fit_line(peaks: Mapping[int, int], points: int = _LINE_POINTS) -> MemoryLine | None:
    """Fit ``peak = a + b * batch`` by least squares; None where there are fewer than ``points`` batch sizes."""
    return _line_of(list(peaks.items())) if len(peaks) >= points else None


def _line_of(peaks: Sequence[tuple[int, int]]) -> MemoryLine:
    """The line through (batch, peak) of at least two batch sizes."""
    batch_mean = statistics.fmean(batch for batch, _ in peaks)
    peak_mean = statistics.fmean(peak for _, peak in peaks)
    slope = sum((batch - batch_mean) * (peak - peak_mean) for batch, peak in peaks) / sum(
        (batch - batch_mean) ** 2 for batch, _ in peaks
    )
    fixed = peak_mean - slope * batch_mean
    deviation = max(abs(fixed + slope * batch - peak) / peak for batch, peak in peaks)
    sizes = len({batch for batch, _ in peaks})
    return MemoryLine(fixed_bytes=round(fixed), bytes_per_sample=round(slope), deviation=deviation, points=sizes)


def fit_batch(found: Measurements, sweep: Sweep | None, batch: int, command: Sequence[str] = ()) -> BatchFit:
    """Whether a batch of this size would fit, from the batch sizes that were measured.

    Args:
        found: What was measured of a run.
        sweep: What `perfkit try --sweep batch-size` measured of its program.
        batch: Samples of a step.
        command: The run's command, for an error.

    Raises:
        RunError: fewer than two batch sizes were measured.
    """
    peaks, memory, total, source = max(
        (_of_sweep(sweep), _of_steps(found)), key=lambda one: len({size for size, _ in one[0]})
    )
    sizes = sorted({size for size, _ in peaks})
    if len(sizes) < 2:
        seen = f"{sizes[0]} alone was" if sizes else "none was"
        script = " ".join(command) or "train.py"
        raise RunError(
            f"whether batch {batch} fits needs the peak memory of at least 2 batch sizes, and in {found.source} {seen} "
            f"measured. Run: perfkit try --sweep batch-size --run {found.source} {script}"
        )
    line = _line_of(peaks)
    expected = line.at(batch)
    margin = _margin(peaks, line, batch) if len(sizes) >= _LINE_POINTS else None
    high = expected + margin if margin is not None else expected
    low = max(0, expected - margin) if margin is not None else expected
    answer: FitAnswer = "unknown"
    if total is not None:
        answer = "fits" if high <= total else "does not fit" if low > total else "uncertain"
    return BatchFit(
        batch=batch,
        answer=answer,
        bytes=expected,
        low_bytes=low if margin is not None else None,
        high_bytes=high if margin is not None else None,
        total_bytes=total,
        leaves_reserve=high <= (1 - RESERVE) * total if total is not None else None,
        memory=memory,
        sizes=tuple(sizes),
        line=line,
        source=source,
    )


_Peaks = tuple[list[tuple[int, int]], str, int | None, str]


def _of_sweep(sweep: Sweep | None) -> _Peaks:
    if sweep is None or sweep.swept != "batch-size":
        return [], "", None, ""
    peaks = [(one.value, one.peak_bytes) for one in sweep.points if one.peak_bytes is not None]
    memory = "device memory" if sweep.memory == "device" else "resident memory of the process"
    return peaks, memory, sweep.total_bytes, "sweep.json"


def _of_steps(found: Measurements) -> _Peaks:
    """The steps that were recorded for memory, of the device where the run has one."""
    devices = sorted(found.all(PeakMemory), key=lambda one: (one.device == "cpu", -one.peak_bytes))
    if not devices:
        return [], "", None, ""
    memory, rank = devices[0], found.get(Rank)
    name = "memory_bytes" if memory.device == "cpu" else f"{memory.device}.total_bytes"
    text = rank.settings.get(name) if rank is not None else None
    total = int(text) if text is not None and text.isdigit() else None
    outside = memory.outside_bytes or 0
    peaks = [(one.samples, one.peak_bytes + outside) for one in memory.steps if one.samples is not None]
    what = "device memory" if memory.device != "cpu" else "memory of the process"
    return peaks, what, total, memory.source


def _margin(peaks: Sequence[tuple[int, int]], line: MemoryLine, batch: int) -> int:
    """Half of the 95 % interval in which a new peak lies (the prediction interval of a line by least squares)."""
    count = len(peaks)
    freedom = count - 2
    mean = statistics.fmean(size for size, _ in peaks)
    spread = sum((size - mean) ** 2 for size, _ in peaks)
    error = math.sqrt(sum((peak - line.at(size)) ** 2 for size, peak in peaks) / freedom)
    quantile = _T[freedom - 1] if freedom <= len(_T) else 1.96 + 2.4 / freedom
    return math.ceil(quantile * error * math.sqrt(1 + 1 / count + (batch - mean) ** 2 / spread))
