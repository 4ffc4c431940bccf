"""The position of a kernel under the roofline of its device, from the counters of Nsight Compute."""

from __future__ import annotations

import re

from perfkit.measures.ncu._metrics import Metrics, time_ns
from perfkit.measures.results.kernel_profiles import RoofPosition
from perfkit.measures.results.kernels import Bound
from perfkit.trace.nsight.ncu import Launch

#: letter of the SASS instructions -> precision, FLOP of an add or multiply of one thread. ncu's own roofline counts two
#: numbers per instruction of half precision.
_PRECISIONS = {"d": ("float64", 1), "f": ("float32", 1), "h": ("float16", 2)}
_TENSOR = re.compile(r"sm__ops_path_tensor_(?!op_)(\w+)\.sum(?P<per_cycle>\.per_cycle_elapsed)?")
_TENSOR_WORKS = re.compile(r"sm__(inst_executed_)?pipe_tensor")


def roof_position(launch: Launch) -> RoofPosition | None:
    """The position of one launch; None without its bytes or its operations."""
    metrics, seconds = launch.metrics, (time_ns(launch) or 0) / launch.count / 1e9
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
