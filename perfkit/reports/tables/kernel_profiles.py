"""Kernels that Nsight Compute profiled, each launch alone."""

from __future__ import annotations

from typing import Any

from perfkit.measures.results.kernel_profiles import KernelProfile, KernelProfiles
from perfkit.reports.tables._definition import TableDefinition, TableField, dimensions

NEEDS = "kernels are profiled by Nsight Compute: `perfkit ncu -- python train.py`, then name its report"


def _stall(stall: Any) -> str:
    return f"{stall.reason} {stall.share:.0%}" if stall.share is not None else stall.reason


TABLE = TableDefinition(
    name="kernel-profiles",
    title="Kernel profiles",
    needs=NEEDS,
    rows=lambda source: source.rows(KernelProfile, KernelProfiles),
    note=lambda source: (
        "By Nsight Compute, each launch alone; compute, memory, DRAM, L1 and L2 as shares of their peaks."
    ),
    fields=(
        TableField("kernel", "text", "name"),
        TableField("launches", "count", "launches"),
        TableField("total", "ns", "total_ns"),
        TableField("each", "ns", lambda one: round(one.mean_ns) if one.mean_ns is not None else None),
        TableField("share", "share", "share"),
        TableField("limited by", "text", lambda one: one.bound if one.bound != "unknown" else None),
        TableField("compute", "share", "compute"),
        TableField("memory", "share", "memory"),
        TableField("DRAM", "share", "dram"),
        TableField("L1", "share", "l1"),
        TableField("L2", "share", "l2"),
        TableField("L1 hits", "share", "l1_hit"),
        TableField("L2 hits", "share", "l2_hit"),
        TableField("sectors used", "share", "sector_use"),
        TableField("sectors per load", "number", "sectors_per_request"),
        TableField("bank conflicts", "share", "conflict_share"),
        TableField("IPC", "number", "ipc"),
        TableField("SM busy", "share", "sm_busy"),
        TableField("tensor pipe", "share", "tensor_pipe"),
        TableField("pipes", "text", lambda one: ", ".join(f"{p.pipe} {p.share:.0%}" for p in one.pipes) or None),
        TableField("eligible warps", "number", "eligible_warps"),
        TableField("no eligible", "share", "no_eligible"),
        TableField("threads per warp", "number", "threads_per_warp"),
        TableField("replays", "share", "replay_share"),
        TableField("occupancy", "share", "occupancy"),
        TableField("occupancy, theoretical", "share", "theoretical_occupancy"),
        TableField("occupancy limited by", "text", lambda one: ", ".join(one.limiters) or None),
        TableField("registers", "count", "registers"),
        TableField("spills", "count", lambda one: round(one.spills) if one.spills is not None else None),
        TableField("waves", "number", "waves"),
        TableField("stalls", "text", lambda one: ", ".join(_stall(stall) for stall in one.stalls) or None),
        TableField("FLOP/byte", "number", lambda one: one.roof.intensity if one.roof is not None else None),
        TableField("FLOP/s", "flops", lambda one: one.roof.flops_per_s if one.roof is not None else None),
        TableField("of the roof", "share", lambda one: one.roof.roof_share if one.roof is not None else None),
        TableField("grid", "text", lambda one: dimensions(one.grid)),
        TableField("block", "text", lambda one: dimensions(one.block)),
        TableField("device", "count", "device"),
        TableField("stream", "count", "stream"),
        TableField("launch", "count", "id"),
    ),
)
