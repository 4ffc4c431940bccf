"""Model FLOPs utilization (MFU): the share of a device's peak arithmetic that a step uses."""

from __future__ import annotations

from perfkit.limits.device_peaks import peaks_of
from perfkit.measures.results.steps import Utilization
from perfkit.run.records import StepFlops


def measure_utilization(flops: StepFlops | None, step_ns: int | None) -> Utilization | None:
    """MFU of a step of ``step_ns``; None where the operations, the step or the device's peak are not known.

    Operations in several precisions are each compared with their own peak. What activation checkpointing computes
    again does not count: it is not work of the model.
    """
    if flops is None or flops.problem is not None or not step_ns or flops.device is None:
        return None
    known = peaks_of(flops.device)
    counted = {name: count for name, count in flops.by_precision.items() if count}
    if known is None or not counted or not counted.keys() <= known.tflops.keys():
        return None
    peaks = known.tflops
    total = sum(counted.values())
    own = total - flops.recomputed
    # What the step would take if every unit computed at its peak.
    ideal_s = sum(count / (peaks[name] * 1e12) for name, count in counted.items())
    main = max(counted, key=lambda name: counted[name])
    step_s = step_ns / 1e9
    return Utilization(
        mfu=ideal_s * (own / total) / step_s,
        flops=own,
        recomputed=flops.recomputed,
        flops_per_s=own / step_s,
        precision=main,
        peak_flops_per_s=peaks[main] * 1e12,
        device=flops.device,
        source=(
            f"operations counted in step {flops.step}; dense peak of {flops.device} in {main}, {peaks[main]:g} TFLOP/s"
            + (", other precisions by their own" if len(counted) > 1 else "")
        ),
    )
