"""Kernels in a report of Nsight Compute: their share of the device's peaks, and what limits them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from perfkit.measures.ncu._counters import counters_of
from perfkit.measures.ncu._dram_chains import COMPUTE, DRAM, dram_chains
from perfkit.measures.ncu._metrics import Metrics, WeighedLaunches, first, time_ns
from perfkit.measures.ncu._roof_position import roof_position
from perfkit.measures.ncu._stalls import stalls_of
from perfkit.measures.results.kernel_profiles import KernelProfile, KernelProfiles, Limiter, ToolAdvice
from perfkit.trace.nsight.ncu import Launch, NcuReport

_MEMORY = ("gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",)
_L1 = ("l1tex__throughput.avg.pct_of_peak_sustained_active", "l1tex__throughput.avg.pct_of_peak_sustained_elapsed")
_L2 = ("lts__throughput.avg.pct_of_peak_sustained_elapsed",)
_OCCUPANCY = ("sm__warps_active.avg.pct_of_peak_sustained_active",)
_THEORETICAL = ("sm__maximum_warps_per_active_cycle_pct",)
_SPILL_SHARES = ("derived__local_spilling_requests_pct", "derived__shared_spilling_requests_pct")

#: The kinds of ncu's rules that ask for nothing.
_INFORMATION = ("INF", "INFO", "OK")

_LIMITS: dict[str, Limiter] = {
    "launch__occupancy_limit_registers": "registers",
    "launch__occupancy_limit_shared_mem": "shared memory",
    "launch__occupancy_limit_barriers": "barriers",
    "launch__occupancy_limit_warps": "warps",
    "launch__occupancy_limit_blocks": "blocks",
}


def measure_kernel_profiles(report: NcuReport) -> KernelProfiles:
    """Put launches of the same kernel, grid and block together, longest first."""
    groups: dict[tuple[object, ...], list[Launch]] = defaultdict(list)
    for launch in report.launches:
        groups[(launch.kernel, launch.grid, launch.block)].append(launch)
    times = [ns for launch in report.launches if (ns := time_ns(launch)) is not None]
    total_ns = round(sum(times)) if times else None
    count = sum(launch.count for launch in report.launches)
    rows = [_profile(launches, total_ns, count) for launches in groups.values()]
    capabilities = sorted({launch.compute_capability for launch in report.launches if launch.compute_capability})
    return KernelProfiles(
        launches=count,
        rows=tuple(sorted(rows, key=lambda row: (-(row.total_ns or 0), -row.launches))),
        total_ns=total_ns,
        compute_capability=", ".join(capabilities) or None,
        chains=dram_chains(report.launches, total_ns),
    )


def gaps_of(profiles: KernelProfiles) -> list[str]:
    """What the report does not contain, and how it is collected; nothing where one kernel has it."""
    lacks: list[tuple[Callable[[KernelProfile], object], str]] = [
        (lambda row: row.total_ns, "times, so kernels count by their launches (--section SpeedOfLight)"),
        (lambda row: row.compute is not None and row.memory, "throughput (--section SpeedOfLight)"),
        (lambda row: row.theoretical_occupancy or row.occupancy, "occupancy (--section Occupancy)"),
        (lambda row: row.registers, "registers (--section LaunchStats)"),
        (lambda row: row.stalls, "stall reasons (--section WarpStateStats, exported with --page raw)"),
        (lambda row: row.l2_hit is not None, "hit rates of the caches (--section MemoryWorkloadAnalysis)"),
        (lambda row: row.no_eligible is not None, "scheduler statistics (--section SchedulerStats)"),
        (lambda row: row.threads_per_warp, "threads per warp (--section WarpStateStats)"),
        (lambda row: row.pipes, "pipe use (--section ComputeWorkloadAnalysis, exported with --page raw)"),
        (
            lambda row: row.sector_use is not None,
            "access patterns (--section SourceCounters, exported with --page raw)",
        ),
        (lambda row: row.advice, "texts of ncu's rules (exported with --page details)"),
        (lambda row: row.roof, "counts of operations for the roofline (--set roofline, exported with --page raw)"),
    ]
    missing = [what for has, what in lacks if not any(has(row) for row in profiles.rows)]
    return [f"the report has no {'; no '.join(missing)}; ncu --set full collects all"] if missing else []


def _profile(launches: list[Launch], total_ns: int | None, count: int) -> KernelProfile:
    times = [time_ns(launch) for launch in launches]
    known = [ns for ns in times if ns is not None]
    counts = [float(one.count) for one in launches]
    weighed = WeighedLaunches(launches, known if len(known) == len(launches) and all(known) else counts)
    longest = max(range(len(launches)), key=lambda at: (times[at] or 0) / launches[at].count)
    one, of = launches[longest], sum(launch.count for launch in launches)
    own_ns = round(sum(known)) if known else None
    memory = weighed.share(*_MEMORY)
    dram, l1, l2 = weighed.share(*DRAM), weighed.share(*_L1), weighed.share(*_L2)
    if memory is None and (parts := [part for part in (dram, l1, l2) if part is not None]):
        memory = max(parts)  # versions before 2020 have the parts only; ncu's own number is the largest
    spill_shares = [share for name in _SPILL_SHARES if (share := weighed.share(name)) is not None]
    registers = [launch.metrics.get("launch__registers_per_thread") for launch in launches]
    return KernelProfile(
        name=one.kernel,
        launches=of,
        grid=one.grid,
        block=one.block,
        id=one.id,
        device=one.device,
        stream=one.stream,
        total_ns=own_ns,
        share=(own_ns / total_ns if own_ns is not None and total_ns else None) if total_ns is not None else of / count,
        compute=weighed.share(*COMPUTE),
        memory=memory,
        dram=dram,
        l1=l1,
        l2=l2,
        occupancy=weighed.share(*_OCCUPANCY),
        theoretical_occupancy=weighed.share(*_THEORETICAL),
        limiters=_limiters(one.metrics),
        registers=max((round(each) for each in registers if each is not None), default=None),
        spills=weighed.mean(_spills),
        spill_share=max(spill_shares, default=None),
        waves=weighed.mean(lambda launch: launch.metrics.get("launch__waves_per_multiprocessor")),
        stalls=stalls_of(weighed),
        roof=roof_position(one),
        advice=_advice(one),
        **counters_of(weighed)._asdict(),
    )


def _advice(launch: Launch) -> tuple[ToolAdvice, ...]:
    """What ncu's rules advise, largest estimate for the whole launch first; without their mere information."""
    found = [
        ToolAdvice(
            rule=rule.name,
            section=rule.section,
            text=rule.text,
            is_local=rule.scope == "local",
            saving_share=None if rule.speedup_percent is None else rule.speedup_percent / 100,
        )
        for rule in launch.rules
        if rule.kind.upper() not in _INFORMATION
    ]
    return tuple(sorted(found, key=lambda one: (one.saving_share is None, one.is_local, -(one.saving_share or 0))))


def _spills(launch: Launch) -> float | None:
    parts = [launch.metrics.get(f"derived__{where}_spilling_requests") for where in ("local", "shared")]
    known = [part for part in parts if part is not None]
    return sum(known) if known else launch.metrics.get("sass__inst_executed_register_spilling")


def _limiters(metrics: Metrics) -> tuple[Limiter, ...]:
    """What allows the fewest blocks on a multiprocessor; nothing where the launch could fill it."""
    theoretical = first(metrics, _THEORETICAL)
    limits = {name: metrics[metric] for metric, name in _LIMITS.items() if metrics.get(metric, 0) > 0}
    if not limits or (theoretical is not None and theoretical >= 99.5):
        return ()
    lowest = min(limits.values())
    return tuple(name for name, limit in limits.items() if limit == lowest)
