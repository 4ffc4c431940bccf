"""A file of DCGM's, or a folder with one for each node -> what each GPU was doing.

Which format a file has is seen in it: the header of `dcgmi dmon`, or a metric of DCGM in Prometheus text. Both may be
gzip. `dcgmi dmon` writes neither a host nor a time: in a folder a file without hosts is of the host that it is named
after (``node7.txt``), and its values are of as long as it ran.
"""

from __future__ import annotations

import codecs
import itertools
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from perfkit._text import printable
from perfkit.errors import TraceError
from perfkit.run.records import MinMedianMax, NodeHealth, NodeSample, clock_reasons
from perfkit.trace.dcgm._dmon import HEADER, dmon_readings
from perfkit.trace.dcgm._exposition import SAMPLE, exposition_readings
from perfkit.trace.dcgm._fields import DMON_FIELDS
from perfkit.trace.dcgm._readings import MAX_FILE_READINGS, GpuName, Reading, Skipped
from perfkit.trace.file_text import FileText

#: Readings of a GPU that are kept, evenly: every second one is dropped when there are more. Medians of 1,000 or more
#: values do not change.
MAX_READINGS = 2_000
#: Samples of a record, as NVML's (`perfkit.record.watchers.node_health.MAX_SAMPLES`).
_MAX_SAMPLES = 100
#: GPUs of a file, a fifth of the readings that are kept of it: of each several stay.
_MAX_GPUS = 100_000
#: Lines in which the format of a file is searched, and the longest line that is read.
_FIRST_LINES, _MAX_LINE = 10_000, 1 << 16
#: Names that a sentence lists.
_LISTED = 6
_SPREADS = ("sm_mhz", "memory_mhz", "power_w", "temperature_c", "utilization", "memory_bytes")
_WHOLE = ("sm_mhz", "memory_mhz", "temperature_c", "utilization")
_WANTED = (
    f"perfkit reads what `dcgmi dmon -e {DMON_FIELDS}` prints, and the text that dcgm-exporter serves "
    "(curl HOST:9400/metrics), also gzip"
)


class ObservedGpu(NamedTuple):
    """A GPU as a file names it, and its readings in order of time."""

    name: GpuName
    file: str
    readings: tuple[Reading, ...]

    @property
    def shown(self) -> str:
        """The GPU in a sentence."""
        number = f"GPU {self.name.number}" if self.name.number is not None else self.name.uuid or "a GPU"
        return printable(f"{number} of {self.name.host or self.file}")

    @property
    def has_times(self) -> bool:
        """Whether every reading has a time."""
        return all(reading.unix_ns is not None for reading in self.readings)

    def between(self, start_ns: int, end_ns: int) -> ObservedGpu:
        """Only the readings in this stretch of unix time, and those without a time."""
        inside = (one for one in self.readings if one.unix_ns is None or start_ns <= one.unix_ns <= end_ns)
        return self._replace(readings=tuple(inside))

    def health(self, when: dict[int, tuple[int, int]] | None = None) -> NodeHealth:
        """Its readings as a record; ``when`` is the run's clock and the number of begun steps at each unix time."""
        columns: dict[str, list[float]] = {}
        for reading in self.readings:
            for name, value in reading.values.items():
                columns.setdefault(name, []).append(value)
        samples = [_sample(reading, when or {}) for reading in self.readings]
        each = -(-len(samples) // _MAX_SAMPLES)
        reasons = Counter(word for sample in samples for word in sample.reasons or ())
        health = NodeHealth(
            uuid=self.name.uuid.removeprefix("GPU-"),
            source="DCGM",
            name=self.name.model,
            taken=len(samples),
            max_sm_mhz=_largest(columns, "max_sm_mhz"),
            max_memory_mhz=_largest(columns, "max_memory_mhz"),
            power_limit_w=columns["power_limit_w"][-1] if "power_limit_w" in columns else None,
            xid=round(columns["xid"][-1]) if "xid" in columns else None,
            ecc_errors=_largest(columns, "ecc_errors"),
            samples=tuple(NodeSample.merged(samples[at : at + each]) for at in range(0, len(samples), each or 1)),
            reasons=dict(reasons),
        )
        spreads = {name: MinMedianMax.of_values(columns.get(name, [])) for name in _SPREADS}
        return msgspec.structs.replace(health, **spreads)


class NodeMetrics(NamedTuple):
    """The GPUs of a file or a folder; ``notes`` has a sentence for each thing that was left out."""

    source: str
    gpus: tuple[ObservedGpu, ...]
    notes: tuple[str, ...]


def read_node_metrics(path: str | os.PathLike[str]) -> NodeMetrics:
    """Read a file of `dcgmi dmon` or dcgm-exporter, or each file of a folder.

    Raises:
        TraceError: it does not exist, cannot be read, or holds no values of a GPU.
    """
    place = Path(path)
    if not place.exists():
        raise TraceError(f"{path} does not exist: {_WANTED}")
    in_folder = place.is_dir()
    try:
        files = sorted(one for one in place.iterdir() if one.is_file() and one.name[0] != ".") if in_folder else [place]
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror or error}") from None
    gpus: list[ObservedGpu] = []
    notes: list[str] = []
    for file in files:
        try:
            found, about = _read_file(file, place if in_folder else None)
        except TraceError as error:
            if not in_folder:
                raise
            notes.append(str(error))
            continue
        gpus += found
        notes += about
    if not gpus:
        raise TraceError(f"{path} holds no file with values of a GPU: {_WANTED}")
    return NodeMetrics(str(path), tuple(gpus), (*notes, *_lacking(gpus)))


def _lacking(gpus: Sequence[ObservedGpu]) -> Iterator[str]:
    """A sentence on the files without times, and on those without the reasons for low clocks."""
    untimed = Counter(gpu.file for gpu in gpus if not gpu.has_times)
    if untimed:
        yield f"the values of {_listed(untimed)} have no times and are taken for those of the whole run"
    unexplained = Counter(gpu.file for gpu in gpus if not any("reasons" in reading.values for reading in gpu.readings))
    if unexplained:
        yield (
            f"{_listed(unexplained)}: there are no clocks event reasons, which say why clocks are low; add 112 to "
            "dmon's fields, or DCGM_FI_DEV_CLOCKS_EVENT_REASONS to the exporter's counters"
        )


def _host_of(file: Path) -> str:
    """``node7`` of ``node7.txt``, ``node7.prom.gz`` and ``node7.dcgm.log``; a domain's points stay."""
    return re.sub(r"(?:\.(?:gz|txt|log|out|prom|metrics|dmon|dcgm|dcgmi))+$", "", file.name)


def _read_file(file: Path, folder: Path | None) -> tuple[list[ObservedGpu], list[str]]:
    """The GPUs of a file, which in a folder is of the host that it is named after, and what was left out of it."""
    skipped, host = Skipped(), _host_of(file) if folder is not None else ""
    try:
        text = FileText(file, inside=folder)
        gpus = _by_gpu(_readings(_lines(text), host, skipped, file), file, skipped)
    except OSError as error:
        raise TraceError(f"{file} cannot be read: {error.strerror or error}") from None
    notes = [f"{file.name}: {sentence}" for sentence in (*_left_out(skipped), *([text.damage] if text.damage else []))]
    if not gpus:
        why = f"; not read: {_listed(skipped.fields)}" if skipped.fields else ""
        raise TraceError(f"{file} holds no value of a GPU that perfkit reads{why}. {_WANTED}")
    return gpus, notes


def _lines(text: FileText) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
    pending = ""
    for block in text:
        *whole, pending = (pending + decoder.decode(block)).split("\n")
        yield from (line.rstrip("\r") for line in whole if len(line) <= _MAX_LINE)
        if len(pending) > _MAX_LINE:
            pending = pending[: _MAX_LINE + 1]  # of one line, which is too long, only its length counts
    if pending and len(pending) <= _MAX_LINE:
        yield pending.rstrip("\r")


def _readings(lines: Iterator[str], host: str, skipped: Skipped, file: Path) -> Iterator[Reading]:
    """The readings of a file, by the first line that shows its format."""
    first: list[str] = []
    for line in itertools.islice(lines, _FIRST_LINES):
        first.append(line)
        if HEADER.match(line):
            return dmon_readings(itertools.chain(first, lines), host, skipped)
        if SAMPLE.match(line):
            return exposition_readings(itertools.chain(first, lines), host, skipped)
    raise TraceError(f"{file} was not written by DCGM: {_WANTED}")


def _by_gpu(readings: Iterable[Reading], file: Path, skipped: Skipped) -> list[ObservedGpu]:
    """Each GPU with its readings, of which every second one is dropped where there are too many."""
    kept: dict[GpuName, list[Reading]] = {}
    every: Counter[GpuName] = Counter()
    seen: Counter[GpuName] = Counter()
    in_all = 0
    for reading in readings:
        gpu = reading.gpu
        if gpu not in seen and len(seen) >= _MAX_GPUS:
            skipped.beyond += len(reading.values)
            continue
        seen[gpu] += 1
        if not reading.values or (seen[gpu] - 1) % (1 << every[gpu]):
            continue
        of_gpu = kept.setdefault(gpu, [])
        of_gpu.append(reading)
        in_all += 1
        for one in [*kept] if in_all > MAX_FILE_READINGS else [gpu] if len(of_gpu) > MAX_READINGS else []:
            in_all -= len(kept[one]) // 2
            del kept[one][1::2]
            every[one] += 1
    return [ObservedGpu(gpu, file.name, tuple(of_gpu)) for gpu, of_gpu in kept.items()]


def _left_out(skipped: Skipped) -> Iterator[str]:
    if skipped.fields:
        yield f"fields that perfkit does not read were skipped: {_listed(skipped.fields)}"
    if skipped.entities:
        yield f"values of parts and of other devices were skipped: {_listed(skipped.entities)}"
    if skipped.damaged:
        yield f"{skipped.damaged:,} damaged lines or values were skipped"
    if skipped.beyond:
        yield f"{skipped.beyond:,} values were skipped, because the file has too many times or GPUs"


def _listed(names: Counter[str]) -> str:
    some = sorted(names)
    more = f" and {len(some) - _LISTED} more" if len(some) > _LISTED else ""
    return printable(", ".join(some[:_LISTED])) + more


def _sample(reading: Reading, when: dict[int, tuple[int, int]]) -> NodeSample:
    values = reading.values
    at_ns, step = when.get(reading.unix_ns or -1, (None, None))
    numbers = {name: round(values[name]) if name in values else None for name in _WHOLE}
    return NodeSample(
        at_ns=at_ns,
        step=step,
        power_w=values.get("power_w"),
        reasons=clock_reasons(int(values["reasons"])) if "reasons" in values else None,
        **numbers,
    )


def _largest(columns: dict[str, list[float]], name: str) -> int | None:
    return round(max(columns[name])) if name in columns else None
