"""Texts as DCGM writes them: `dcgmi dmon` (widths of dcgmi/DeviceMonitor.cpp in github.com/NVIDIA/DCGM, 4.x) and the
text of dcgm-exporter (labels of its own tests, internal/.../metriccontract in github.com/NVIDIA/dcgm-exporter)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

#: dmon's headers, the widths that dcgm_fields.cpp gives their columns, and their units.
_COLUMNS = {
    "SMCLK": (5, ""),
    "MMCLK": (5, ""),
    "DVCCTR": (20, ""),
    "SMMAX": (5, ""),
    "TMPTR": (5, "C"),
    "POWER": (10, "W"),
    "GPUTL": (10, ""),
    "FBUSD": (10, ""),
    "XIDER": (5, ""),
    "EDVTL": (5, ""),
    "DVNAM": (40, ""),
    "TENSO": (5, ""),
}
_ENTITY = 14 + 2


def dmon(rows: Sequence[tuple[str, Mapping[str, Any]]], header_every: int = 40) -> str:
    """The output for these entities and values, one row each; a value that is missing is blank, None is N/A."""
    names = [name for name in _COLUMNS if any(name in values for _, values in rows)]
    wide = {name: _COLUMNS[name][0] + 6 + 2 for name in names}
    head = f"{'#Entity':<{_ENTITY}}" + "".join(f"{name:<{wide[name]}}" for name in names)
    units = f"{'ID':<{_ENTITY}}" + "".join(f"{_COLUMNS[name][1]:<{wide[name]}}" for name in names)
    lines = []
    for at, (entity, values) in enumerate(rows):
        if at % header_every == 0:
            lines += [head, units]
        texts = {name: "" if name not in values else "N/A" if values[name] is None else values[name] for name in names}
        lines.append(f"{entity:<{_ENTITY}}" + "".join(f"{texts[name]!s:<{wide[name]}}" for name in names))
    return "\n".join(lines) + "\n\n\ndmon was stopped due to receiving a signal\n"


def exposition(
    scrapes: Sequence[tuple[int | None, Mapping[int, Mapping[str, float]]]],
    host: str = "node0",
    uuids: Mapping[int, str] | None = None,
) -> str:
    """Scrapes of dcgm-exporter: for each its time in ms (or None), and the values of each GPU by field."""
    lines = []
    for at_ms, gpus in scrapes:
        for name in dict.fromkeys(name for values in gpus.values() for name in values):
            lines += [f"# HELP {name} a help text", f"# TYPE {name} gauge"]
            for gpu, values in gpus.items():
                uuid = (uuids or {}).get(gpu, f"GPU-{gpu:08d}-7e50-af0b-85f9-6d2b8b8d1c11")
                labels = (
                    f'gpu="{gpu}",UUID="{uuid}",pci_bus_id="00000000:0D:00.0",device="nvidia{gpu}",'
                    f'modelName="NVIDIA H100 80GB HBM3",Hostname="{host}",DCGM_FI_DRIVER_VERSION="580.126.09"'
                )
                if name in values:
                    time = f" {at_ms}" if at_ms is not None else ""
                    lines.append(f"{name}{{{labels}}} {values[name]}{time}")
    return "\n".join(lines) + "\n"
