"""Kernels in a report of Nsight Compute: their share of the device's peaks, and what limits them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from perfkit.measures.results.kernel_profiles import (
    KernelProfile,
    KernelProfiles,
    Limiter,
    RoofPosition,
    Stall,
)
from perfkit.measures.results.kernels import Bound
from perfkit.trace.nsight.ncu import Launch, NcuReport

Metrics = Mapping[str, float]

#: Hours for launches of one kernel: such a number is damaged.
_MAX_NS = 1e13
#: Stall reasons that are kept of a kernel: what a person reads.
_STALLS = 3
#: With at least this many reasons in a report all of them are there: each version has 15 to 20.
_ALL_REASONS = 12

_COMPUTE = ("sm__throughput.avg.pct_of_peak_sustained_elapsed", "sm__throughput.avg.pct_of_peak_sustained_active")
_MEMORY = ("gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",)
_DRAM = (
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
)
_L1 = ("l1tex__throughput.avg.pct_of_peak_sustained_active", "l1tex__throughput.avg.pct_of_peak_sustained_elapsed")
_L2 = ("lts__throughput.avg.pct_of_peak_sustained_elapsed",)
_OCCUPANCY = ("sm__warps_active.avg.pct_of_peak_sustained_active",)
_THEORETICAL = ("sm__maximum_warps_per_active_cycle_pct",)
_SPILL_SHARES = ("derived__local_spilling_requests_pct", "derived__shared_spilling_requests_pct")

_LIMITS: dict[str, Limiter] = {
    "launch__occupancy_limit_registers": "registers",
    "launch__occupancy_limit_shared_mem": "shared memory",
    "launch__occupancy_limit_barriers": "barriers",
    "launch__occupancy_limit_warps": "warps",
    "launch__occupancy_limit_blocks": "blocks",
}

#: How ncu counts reasons, from the most exact to samples; a report may have several.
_REASONS = (
    re.compile(r"smsp__average_warps_issue_stalled_(\w+?)_per_issue_active\.ratio"),
    re.compile(r"smsp__average_warp_latency_issue_stalled_(\w+)\.ratio"),
    re.compile(r"smsp__warp_issue_stalled_(\w+)_per_warp_active\.pct"),
    re.compile(r"smsp__pcsamp_warps_issue_stalled_(\w+)"),
)
_SHARES_OF_WARPS = _REASONS[2]
#: Parts of a reason that is counted as a whole too, and the warps that stall although another one issues.
_PART = re.compile(r"_pipe_(?!throttle)|_not_issued$")
#: A warp that issues waits for nothing.
_ISSUES = "selected"
_WARP_LATENCY = (
    "smsp__average_warp_latency_per_inst_issued.ratio",
    "smsp__average_warps_active_per_issue_active.ratio",
)

#: letter of the SASS instructions -> precision, FLOP of an add or multiply of one thread. ncu's own roofline counts two
#: numbers per instruction of half precision.
_PRECISIONS = {"d": ("float64", 1), "f": ("float32", 1), "h": ("float16", 2)}
_TENSOR = re.compile(r"sm__ops_path_tensor_(?!op_)(\w+)\.sum(?P<per_cycle>\.per_cycle_elapsed)?")
_TENSOR_WORKS = re.compile(r"sm__(inst_executed_)?pipe_tensor")


def measure_kernel_profiles(report: NcuReport) -> KernelProfiles:
    """Put launches of the same kernel, grid and block together, longest first."""
    groups: dict[tuple[object, ...], list[Launch]] = defaultdict(list)
    for launch in report.launches:
        groups[(launch.kernel, launch.grid, launch.block)].append(launch)
    times = [ns for launch in report.launches if (ns := _time_ns(launch)) is not None]
    total_ns = round(sum(times)) if times else None
    count = sum(launch.count for launch in report.launches)
    rows = [_profile(launches, total_ns, count) for launches in groups.values()]
    capabilities = sorted({launch.compute_capability for launch in report.launches if launch.compute_capability})
    return KernelProfiles(
        launches=count,
        rows=tuple(sorted(rows, key=lambda row: (-(row.total_ns or 0), -row.launches))),
        total_ns=total_ns,
        compute_capability=", ".join(capabilities) or None,
    )


def gaps_of(profiles: KernelProfiles) -> list[str]:
    """What the report does not contain, and how it is collected; nothing where one kernel has it."""
    lacks: list[tuple[Callable[[KernelProfile], object], str]] = [
        (lambda row: row.total_ns, "times, so kernels count by their launches (--section SpeedOfLight)"),
        (lambda row: row.compute is not None and row.memory, "throughput (--section SpeedOfLight)"),
        (lambda row: row.theoretical_occupancy or row.occupancy, "occupancy (--section Occupancy)"),
        (lambda row: row.registers, "registers (--section LaunchStats)"),
        (lambda row: row.stalls, "stall reasons (--section WarpStateStats, exported with --page raw)"),
        (lambda row: row.roof, "counts of operations for the roofline (--set roofline, exported with --page raw)"),
    ]
    missing = [what for has, what in lacks if not any(has(row) for row in profiles.rows)]
    return [f"the report has no {'; no '.join(missing)}; ncu --set full collects all"] if missing else []


def _time_ns(launch: Launch) -> float | None:
    """Time of all the launches that this one represents."""
    seconds = _first(launch.metrics, ("gpu__time_duration.sum", "gpu__time_duration.avg"))
    ns = -1.0 if seconds is None else seconds * 1e9 * launch.count
    return ns if 0 <= ns < _MAX_NS else None


def _first(metrics: Metrics, names: Iterable[str]) -> float | None:
    return next((metrics[name] for name in names if name in metrics), None)


class _Weighed(NamedTuple):
    """Launches of one kernel with their weights: times, or counts where a time is missing."""

    launches: list[Launch]
    weights: list[float]

    def mean(self, value: Callable[[Launch], float | None]) -> float | None:
        """The mean of a value over the launches that have it."""
        known = [(v, w) for one, w in zip(self.launches, self.weights, strict=True) if (v := value(one)) is not None]
        weight = sum(w for _, w in known)
        return sum(v * w for v, w in known) / weight if weight else None

    def share(self, *names: str) -> float | None:
        """The mean of a percentage, as a part of 1."""
        percent = self.mean(lambda launch: _first(launch.metrics, names))
        return None if percent is None or percent < 0 else percent / 100


def _profile(launches: list[Launch], total_ns: int | None, count: int) -> KernelProfile:
    times = [_time_ns(launch) for launch in launches]
    known = [ns for ns in times if ns is not None]
    counts = [float(one.count) for one in launches]
    weighed = _Weighed(launches, known if len(known) == len(launches) and all(known) else counts)
    longest = max(range(len(launches)), key=lambda at: (times[at] or 0) / launches[at].count)
    one, of = launches[longest], sum(launch.count for launch in launches)
    own_ns = round(sum(known)) if known else None
    memory = weighed.share(*_MEMORY)
    dram, l1, l2 = weighed.share(*_DRAM), weighed.share(*_L1), weighed.share(*_L2)
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
        compute=weighed.share(*_COMPUTE),
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
        stalls=_stalls(weighed),
        roof=_roof(one),
    )


def _spills(launch: Launch) -> float | None:
    parts = [launch.metrics.get(f"derived__{where}_spilling_requests") for where in ("local", "shared")]
    known = [part for part in parts if part is not None]
    return sum(known) if known else launch.metrics.get("sass__inst_executed_register_spilling")


def _limiters(metrics: Metrics) -> tuple[Limiter, ...]:
    """What allows the fewest blocks on a multiprocessor; nothing where the launch could fill it."""
    theoretical = _first(metrics, _THEORETICAL)
    limits = {name: metrics[metric] for metric, name in _LIMITS.items() if metrics.get(metric, 0) > 0}
    if not limits or (theoretical is not None and theoretical >= 99.5):
        return ()
    lowest = min(limits.values())
    return tuple(name for name, limit in limits.items() if limit == lowest)


# -- stalls


def _stalls(weighed: _Weighed) -> tuple[Stall, ...]:
    for pattern in _REASONS:
        found = [_reasons(launch.metrics, pattern) for launch in weighed.launches]
        names = {name for reasons in found for name in reasons}
        if not names:
            continue
        totals = [_whole(one.metrics, reasons, pattern) for one, reasons in zip(weighed.launches, found, strict=True)]
        complete = all(totals)
        stalls = []
        for name in names - {_ISSUES}:
            # Each launch's reasons as parts of its own whole; where that is not known, as they are.
            part = sum(
                weight * reasons.get(name, 0) / (total or 1)
                for weight, reasons, total in zip(weighed.weights, found, totals, strict=True)
            )
            stalls.append((part / sum(weighed.weights), name))
        largest = sorted(stalls, reverse=True)[:_STALLS]
        return tuple(Stall(name, min(part, 1.0) if complete else None) for part, name in largest if part > 0)
    return ()


def _reasons(metrics: Metrics, pattern: re.Pattern[str]) -> dict[str, float]:
    found = {}
    for metric, value in metrics.items():
        match = pattern.fullmatch(metric)
        if match is not None and not _PART.search(match[1]) and value >= 0:
            found[match[1]] = value
    return found


def _whole(metrics: Metrics, reasons: dict[str, float], pattern: re.Pattern[str]) -> float | None:
    """What the reasons of a launch are parts of; None where the report does not show it."""
    if pattern is _SHARES_OF_WARPS:
        return 100.0
    known = sum(reasons.values())
    latency = _first(metrics, _WARP_LATENCY)
    # 2%: both are rounded, and may come from different passes.
    if latency is not None and latency > 0 and known <= 1.02 * latency:
        return max(latency, known)
    return known if known > 0 and (_ISSUES in reasons or len(reasons) >= _ALL_REASONS) else None


# -- roofline


def _roof(launch: Launch) -> RoofPosition | None:
    metrics, seconds = launch.metrics, (_time_ns(launch) or 0) / launch.count / 1e9
    bytes_per_s = _bytes_per_s(metrics, seconds)
    work = _work(metrics, seconds)
    if not bytes_per_s or not work:
        return None
    flops_per_s = sum(work.values())
    precision = max(work, key=lambda name: work[name])
    peak_flops, peak_bytes = _peak_flops(metrics, precision), _peak_bytes(metrics)
    intensity = flops_per_s / bytes_per_s
    roof_share: float | None = None
    bound: Bound = "unknown"
    if peak_flops is not None and peak_bytes is not None:
        roof_share = flops_per_s / min(peak_flops, intensity * peak_bytes)
        bound = "memory" if intensity * peak_bytes < peak_flops else "compute"
    return RoofPosition(
        intensity=intensity,
        flops_per_s=flops_per_s,
        bytes_per_s=bytes_per_s,
        precision=precision,
        peak_flops_per_s=peak_flops,
        peak_bytes_per_s=peak_bytes,
        roof_share=roof_share,
        bound=bound,
    )


def _bytes_per_s(metrics: Metrics, seconds: float) -> float | None:
    rate = metrics.get("dram__bytes.sum.per_second")
    if rate is not None:
        return rate
    total = metrics.get("dram__bytes.sum")
    if total is None and "dram__bytes_read.sum" in metrics:
        total = metrics["dram__bytes_read.sum"] + metrics.get("dram__bytes_write.sum", 0.0)
    return total / seconds if total is not None and seconds else None


def _work(metrics: Metrics, seconds: float) -> dict[str, float]:
    """FLOP per second by precision; empty where they were not counted, or not all of them."""
    work: dict[str, float] = {}
    for letter, (precision, size) in _PRECISIONS.items():
        rates = [
            _rate(metrics, f"{letter}{op}", size * flop, seconds) for op, flop in (("add", 1), ("mul", 1), ("fma", 2))
        ]
        if all(rate is not None for rate in rates):
            work[precision] = sum(rate or 0.0 for rate in rates)
    tensor = _tensor(metrics, seconds)
    if tensor is not None:
        work["tensor cores"] = tensor
    elif any(_TENSOR_WORKS.match(name) and value > 0 for name, value in metrics.items()):
        return {}  # most of the work is theirs and was not counted
    return {name: rate for name, rate in work.items() if rate > 0}


def _rate(metrics: Metrics, op: str, flop: int, seconds: float) -> float | None:
    """FLOP per second of one SASS instruction, by its count or by its rate per cycle."""
    cycles = metrics.get("smsp__cycles_elapsed.avg.per_second")
    for unit in ("smsp", "sm"):
        base = f"{unit}__sass_thread_inst_executed_op_{op}_pred_on"
        if seconds and (count := metrics.get(f"{base}.sum")) is not None:
            return count * flop / seconds
        if cycles is not None and (per_cycle := metrics.get(f"{base}.sum.per_cycle_elapsed")) is not None:
            return per_cycle * flop * cycles
    # The number of the roofline's section, which has the factor in it already.
    per_cycle = metrics.get(f"derived__smsp__sass_thread_inst_executed_op_{op}_pred_on_x{flop}")
    return per_cycle * cycles if per_cycle is not None and cycles is not None else None


def _tensor(metrics: Metrics, seconds: float) -> float | None:
    """Operations per second of the tensor cores: each path once, for ncu counts a path and its parts."""
    cycles = metrics.get("sm__cycles_elapsed.avg.per_second")
    rates: dict[str, float] = {}
    for metric, value in metrics.items():
        match = _TENSOR.fullmatch(metric)
        if match is None:
            continue
        if match["per_cycle"] and cycles is not None:
            rates[match[1]] = value * cycles
        elif not match["per_cycle"] and seconds:
            rates.setdefault(match[1], value / seconds)
    wholes = [
        path
        for path in rates
        if not any(path.startswith((f"{other}_dst", f"{other}_sparsity")) for other in rates if other != path)
    ]
    return sum(rates[path] for path in wholes) if rates else None


def _peak_flops(metrics: Metrics, precision: str) -> float | None:
    cycles = metrics.get("sm__cycles_elapsed.avg.per_second")
    if cycles is None:
        return None
    if precision == "tensor cores":
        peaks = [
            value
            for metric, value in metrics.items()
            if metric.startswith("sm__ops_path_tensor_")
            and metric.endswith(".sum.peak_sustained")
            and metrics.get(metric.replace("peak_sustained", "per_cycle_elapsed"), 1.0) > 0
        ]
        return max(peaks) * cycles if peaks else None
    letter, size = next((letter, size) for letter, (name, size) in _PRECISIONS.items() if name == precision)
    base = f"sm__sass_thread_inst_executed_op_{letter}fma_pred_on"
    derived = metrics.get(f"derived__{base}_x{2 * size}")
    counted = metrics.get(f"{base}.sum.peak_sustained")
    per_cycle = derived if derived is not None else counted * 2 * size if counted is not None else None
    return per_cycle * cycles if per_cycle else None


def _peak_bytes(metrics: Metrics) -> float | None:
    per_cycle, cycles = (
        metrics.get("dram__bytes.sum.peak_sustained"),
        metrics.get("dram__cycles_elapsed.avg.per_second"),
    )
    return per_cycle * cycles if per_cycle and cycles else None
