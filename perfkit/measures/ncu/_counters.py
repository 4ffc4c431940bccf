"""Caches, schedulers, pipes, divergence and access patterns of a kernel, from the counters of Nsight Compute."""

from __future__ import annotations

import re
from typing import NamedTuple

from perfkit.measures.ncu._metrics import Metrics, WeighedLaunches, first
from perfkit.measures.results.kernel_profiles import WARP, PipeUse
from perfkit.trace.nsight.ncu import Launch

#: Pipes that are kept of a kernel: what a person reads.
_PIPES = 3
_PIPE = re.compile(r"sm__(?:inst_executed_)?pipe_([a-z0-9]+)\w*\.avg\.pct_of_peak_sustained_active")
#: FMA, FP64 and tensor together, which are there one by one too.
_SUM_OF_PIPES = "shared"
_TENSOR = "tensor"
#: Bytes of a sector: what a cache line is read and written in.
_SECTOR = 32

_L1_HIT = "l1tex__t_sector_hit_rate.pct"
_L2_HIT = "lts__t_sector_hit_rate.pct"
_SM_BUSY = "sm__instruction_throughput.avg.pct_of_peak_sustained_active"
_NO_ELIGIBLE = "smsp__issue_inst0.avg.pct_of_peak_sustained_active"
_ELIGIBLE = "smsp__issue_active.avg.pct_of_peak_sustained_active"


class Counters(NamedTuple):
    """As the fields of these names in `KernelProfile`."""

    l1_hit: float | None
    l2_hit: float | None
    ipc: float | None
    sm_busy: float | None
    pipes: tuple[PipeUse, ...]
    tensor_pipe: float | None
    eligible_warps: float | None
    no_eligible: float | None
    threads_per_warp: float | None
    sector_use: float | None
    sectors_per_request: float | None
    conflict_share: float | None
    replay_share: float | None


def counters_of(weighed: WeighedLaunches) -> Counters:
    """The means over launches of a kernel; None where the report does not have it."""

    def mean(metric: str) -> float | None:
        return weighed.mean(lambda launch: launch.metrics.get(metric))

    pipes = _pipes(weighed)
    idle = weighed.share(_NO_ELIGIBLE)
    issuing = weighed.share(_ELIGIBLE)
    threads = mean("smsp__thread_inst_executed_per_inst_executed.ratio")
    return Counters(
        l1_hit=weighed.share(_L1_HIT),
        l2_hit=weighed.share(_L2_HIT),
        ipc=mean("sm__inst_executed.avg.per_cycle_active"),
        sm_busy=weighed.share(_SM_BUSY),
        pipes=tuple(pipes[:_PIPES]),
        tensor_pipe=next((pipe.share for pipe in pipes if pipe.pipe == _TENSOR), None),
        eligible_warps=mean("smsp__warps_eligible.avg.per_cycle_active"),
        no_eligible=idle if idle is not None or issuing is None else max(0.0, 1 - issuing),
        threads_per_warp=threads if threads is not None and 0 < threads <= WARP else None,
        sector_use=weighed.mean(_sector_use),
        sectors_per_request=mean("l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio"),
        conflict_share=weighed.mean(lambda launch: _excess(launch.metrics, "l1_wavefronts_shared")),
        replay_share=weighed.mean(_replayed),
    )


def _pipes(weighed: WeighedLaunches) -> list[PipeUse]:
    """The pipes, busiest first; of the numbers on one pipe (cycles, instructions, each type) the largest."""
    shares: dict[str, float] = {}
    for metric in {name: None for launch in weighed.launches for name in launch.metrics}:
        match = _PIPE.fullmatch(metric)
        if match is not None and match[1] != _SUM_OF_PIPES and (share := weighed.share(metric)) is not None:
            shares[match[1]] = max(share, shares.get(match[1], 0.0))
    return sorted((PipeUse(pipe, share) for pipe, share in shares.items()), key=lambda one: -one.share)


def _sector_use(launch: Launch) -> float | None:
    """By the sectors that an ideal pattern needs; else by the bytes that loads use of a sector.

    Names of the metrics: those that NVIDIA's own rule requests (UncoalescedGlobalAccess.py of Nsight Compute:
    memory_l2_theoretical_sectors_global, ..._ideal, derived__..._excessive), listed with what they mean in the Nsight
    Compute documentation, "Source Page"; memory_l1_wavefronts_shared likewise, of UncoalescedSharedAccess.py. The bytes
    of a sector are nvprof's gld_efficiency in the documentation's table "nvprof Metric Comparison"; sectors per request
    are in the section MemoryWorkloadAnalysis_Tables, and were seen in published output of ncu 2022.
    """
    excess = _excess(launch.metrics, "l2_theoretical_sectors_global")
    if excess is not None:
        return 1 - excess
    base = "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld"
    used, percent = launch.metrics.get(f"{base}.ratio"), launch.metrics.get(f"{base}.pct")
    share = used / _SECTOR if used else percent / 100 if percent else None
    return share if share is not None and share <= 1 else None  # above 1 neighbours share a sector


def _excess(metrics: Metrics, what: str) -> float | None:
    """The part of these accesses that an ideal pattern would not have."""
    total, ideal = metrics.get(f"memory_{what}"), metrics.get(f"memory_{what}_ideal")
    more = first(metrics, (f"derived__memory_{what}_excessive",))
    if more is None and total is not None and ideal is not None:
        more = total - ideal
    return more / total if total and more is not None and 0 <= more <= total else None


def _replayed(launch: Launch) -> float | None:
    issued, executed = (launch.metrics.get(f"smsp__inst_{what}.sum") for what in ("issued", "executed"))
    # Counters of different passes differ a little: then nothing is known to be replayed.
    return max(0.0, 1 - executed / issued) if issued and executed is not None else None
