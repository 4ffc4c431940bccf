"""What slows a GPU from outside the program, by samples of it: lowered clocks, and other processes on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median_high
from typing import NamedTuple

from perfkit._format import percent, size
from perfkit.run.records import NodeHealth, NodeSample

_COOLING = "Have the node's cooling checked, and exclude the node until then"
_POWER = "Have the node's power supply and its limits checked, and exclude the node until then"
#: Reasons that protect the hardware -> what to do about them. Heat is first, because it causes the slowdowns below it.
_HARMFUL = {
    "hw_thermal_slowdown": _COOLING,
    "sw_thermal_slowdown": _COOLING,
    "hw_power_brake_slowdown": _POWER,
    "hw_slowdown": _POWER,
}
#: Reasons that lower the clock without harm: nothing runs, or the user has set it.
_HARMLESS = frozenset({"gpu_idle", "applications_clocks_setting"})
#: The share of samples with the cause, and their number, at least (chosen): one sample may be the moment of a window.
_OFTEN, _MIN_SAMPLES = 0.10, 2
#: A clock below this part of its maximum is far below it; only samples with this utilization (in percent) count.
_LOW_CLOCK, _IN_USE = 0.5, 50
#: The share of a GPU that counts as used by others, in percent, as what rules report at least; and of samples, most.
_USED, _MAJORITY = 5, 0.5


class GpuProblem(NamedTuple):
    """What slows the GPU: the message, what to do, which samples show it, and whether its effect is known."""

    message: str
    advice: str
    affected: Sequence[NodeSample]
    effect_known: bool = True


def gpu_problems(node: NodeHealth) -> Iterator[GpuProblem]:
    """Lowered clocks that protect the hardware or have no reason, and other processes on the GPU."""
    if (clocks := lowered_clocks(node)) is not None:
        yield clocks
    if (shared := _shared(node)) is not None:
        yield shared


def lowered_clocks(node: NodeHealth) -> GpuProblem | None:
    """Clocks that are lowered to protect the hardware, else those far below the maximum while the GPU is in use."""
    return _protective_slowdown(node) or _low_clock(node)


def _protective_slowdown(node: NodeHealth) -> GpuProblem | None:
    at_least = max(_MIN_SAMPLES, _OFTEN * node.taken)
    often = {reason: node.reasons[reason] for reason in _HARMFUL if node.reasons.get(reason, 0) >= at_least}
    if not often:
        return None
    reasons = ", ".join(f"{reason} in {percent(count, node.taken)}" for reason, count in often.items())
    return GpuProblem(
        f"lowers its clocks: {reasons} of {node.taken} samples",
        f"{_HARMFUL[next(iter(often))]}; the program is not the cause.",
        [sample for sample in node.samples if not often.keys().isdisjoint(sample.reasons or ())],
    )


def _low_clock(node: NodeHealth) -> GpuProblem | None:
    in_use = [sample for sample in node.samples if _in_use(sample)]
    low = [sample for sample in in_use if (sample.sm_mhz or 0) < _LOW_CLOCK * (node.max_sm_mhz or 0)]
    if len(low) < _MIN_SAMPLES or len(low) < _MAJORITY * len(in_use):
        return None
    clock = median_high(sample.sm_mhz or 0 for sample in low)
    limit = f" (power limit {node.power_limit_w:.0f} W)" if node.power_limit_w is not None else ""
    capped = sum("sw_power_cap" in (sample.reasons or ()) for sample in low) > len(low) / 2
    advice = f"Have the power limit checked{limit}" if capped else "Find out who set them with nvidia-smi -q -d CLOCK"
    return GpuProblem(
        f"lowers its clocks: clocks of {clock} MHz, the maximum is {node.max_sm_mhz} MHz, in {len(low)} of "
        f"{len(in_use)} samples",
        f"{advice}; the program is not the cause.",
        low,
    )


def _shared(node: NodeHealth) -> GpuProblem | None:
    known = [sample for sample in node.samples if sample.others is not None]
    shared = [sample for sample in known if sample.others]
    measured = [sample for sample in shared if sample.others_utilization is not None]
    using = [sample for sample in measured if (sample.others_utilization or 0) >= _USED]
    affected, at_least = (using, _OFTEN) if measured else (shared, _MAJORITY)
    if len(affected) < max(_MIN_SAMPLES, at_least * len(known)):
        return None
    count = f"{len(affected)} of {len(known)} samples"
    if measured:
        used = median_high(sample.others_utilization or 0 for sample in using)
        what = f"uses {used}% of it in {count}"
    else:
        memory = max(sample.others_bytes or 0 for sample in shared)
        what = f"is on it in {count}{f' and holds {size(memory)}' if memory else ''}; how much it computes is unknown"
    return GpuProblem(
        f"is shared: another process {what}",
        "Find it with nvidia-smi, end it, or ask the scheduler for a card of your own.",
        affected,
        effect_known=bool(measured),
    )


def _in_use(sample: NodeSample) -> bool:
    used = sample.utilization is None or sample.utilization >= _IN_USE
    return used and sample.sm_mhz is not None and _HARMLESS.isdisjoint(sample.reasons or ())
