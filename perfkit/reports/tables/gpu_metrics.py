"""GPU metrics that nsys sampled: SMs, tensor cores, DRAM, PCIe and NVLink of each device."""

from __future__ import annotations

from perfkit.reports.tables._definition import TableDefinition, TableField
from perfkit.reports.tables._sources import rows_of_nsys
from perfkit.trace.nsight.nsys_gpu_metrics import read_gpu_metrics

TABLE = TableDefinition(
    name="gpu-metrics",
    title="GPU metrics",
    needs="GPU metrics are sampled by nsys: `perfkit nsys --nsys-args --gpu-metrics-devices=all train.py` (older"
    " versions: --gpu-metrics-device=all)",
    rows=rows_of_nsys(read_gpu_metrics),
    note=lambda source: "Samples over the recording, not over its steps; % is of the peak throughput.",
    fields=(
        TableField("device", "count", "device"),
        TableField("metric", "text", "name"),
        TableField("unit", "text", "unit"),
        TableField("mean", "number", "mean"),
        TableField("min", "number", "low"),
        TableField("max", "number", "high"),
        TableField("samples", "count", "samples"),
        TableField("sampled", "ns", "sampled_ns"),
    ),
    on_page=False,
)
