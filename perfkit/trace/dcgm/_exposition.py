"""Prometheus text as dcgm-exporter serves it, one scrape or several after each other.

    DCGM_FI_DEV_SM_CLOCK{gpu="0",UUID="GPU-...",device="nvidia0",modelName="NVIDIA H100",Hostname="node7"} 1755

A number after the value is a time since 1970: in ms (Prometheus text format 0.0.4), with a point in seconds
(OpenMetrics). dcgm-exporter writes none; a collector or a federating Prometheus does. Without times, a GPU's next
scrape begins where one of its fields comes again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from perfkit.trace.dcgm._fields import BY_NAME, value_of
from perfkit.trace.dcgm._readings import MAX_FILE_READINGS, GpuName, Reading, Skipped

#: A line of any metric of DCGM.
SAMPLE = re.compile(r"^\s*(DCGM_\w+)(?:\s*\{(.*)\})?\s+(\S+)(?:\s+(\d{1,13}(?:\.\d+)?))?\s*$")
_LABEL = re.compile(r'\s*([A-Za-z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')
#: Labels of a part of a divided GPU: its values are not the whole GPU's.
_PART = "GPU_I_ID"
#: Characters of a name in a label, and the latest time (in 2262); what is beyond is damage.
_MAX_LABEL, _MAX_UNIX_NS = 500, 2**63


def exposition_readings(lines: Iterable[str], host: str, skipped: Skipped) -> Iterator[Reading]:
    """The scrapes of each GPU, those without times in the order of the file; ``skipped`` counts what is not read."""
    open_readings: dict[tuple[GpuName, int | None], Reading] = {}
    for line in lines:
        if not line.lstrip().startswith("DCGM_"):
            continue  # comments, and what other exporters serve
        sample = SAMPLE.match(line)
        labels = _labels(sample[2] or "") if sample is not None else None
        if sample is None or labels is None:
            skipped.damaged += 1
            continue
        if (field := BY_NAME.get(sample[1])) is None:
            skipped.add_field(sample[1])
            continue
        if labels.get(_PART):
            skipped.add_entity("GPU instance")
            continue
        try:
            value = value_of(sample[3], field)
        except ValueError:
            skipped.damaged += 1
            continue
        gpu, unix_ns = _gpu_of(labels, host), _unix_ns(sample[4])
        if max(len(gpu.host), len(gpu.uuid), len(gpu.model or "")) > _MAX_LABEL or (unix_ns or 0) > _MAX_UNIX_NS:
            skipped.damaged += 1
            continue
        reading = open_readings.get((gpu, unix_ns))
        if reading is not None and unix_ns is None and field.quantity in reading.values:
            yield reading
            reading = None
        if reading is None:
            if len(open_readings) >= MAX_FILE_READINGS:
                skipped.beyond += 1
                continue
            reading = open_readings[gpu, unix_ns] = Reading(gpu, unix_ns, {})
        if value is not None:
            reading.values[field.quantity] = value
    yield from sorted(open_readings.values(), key=lambda one: one.unix_ns or 0)


def _unix_ns(text: str | None) -> int | None:
    """The time of a sample: a whole number of ms, in OpenMetrics' text seconds with a point."""
    if text is None:
        return None
    seconds, _, fraction = text.partition(".")
    return int(seconds) * 10**9 + int(fraction[:9].ljust(9, "0")) if fraction else int(seconds) * 10**6


def _labels(text: str) -> dict[str, str] | None:
    """The labels; None where they are not of the format."""
    labels, at = {}, 0
    while at < len(text.rstrip()):
        if (match := _LABEL.match(text, at)) is None:
            return None
        labels[match[1]] = re.sub(r"\\(.)", lambda one: "\n" if one[1] == "n" else one[1], match[2])
        at = match.end()
    return labels


def _gpu_of(labels: dict[str, str], host: str) -> GpuName:
    number = labels.get("gpu", "")
    return GpuName(
        labels.get("Hostname") or labels.get("hostname") or host,
        int(number) if re.fullmatch(r"\d{1,5}", number) else None,
        labels.get("UUID", ""),
        labels.get("modelName") or None,
    )
