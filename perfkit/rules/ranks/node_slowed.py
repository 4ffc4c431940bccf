"""The node slows the GPU: heat, power, or another process on the same card.

Problem: a GPU lowers its clocks when it gets too hot, when the power supply cannot keep up, or at a limit that an
administrator has set, and it shares its multiprocessors with every process on it. The same code is then slower, and no
change of the code helps. In a run of many ranks, the GPU of the rank that the others wait for is checked, if there is
such a rank.

How it shows: NVML reports a reason for lower clocks that protects the hardware (thermal slowdown, hardware slowdown,
power brake) in at least 10% of the samples; or the clock of the multiprocessors is below half of its maximum while the
GPU is in use; or another process uses at least 5% of the GPU. Where the samples allow it, steps with the cause are
compared with the others; nothing is reported where they are not slower.

Causes: failing cooling, dust, heat of other nodes; a power supply or rack at its limit; a power limit or locked clocks
from an earlier job; a job that was not killed, a notebook that holds the card, a scheduler that gives one card to two.

Fix: nothing in the program. Check the node, and report it to whoever runs it.

    nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER,CLOCK      # which reason is active, at what temperature and limit
    nvidia-smi --query-compute-apps=pid,used_memory --format=csv                            # who else is on the card
    sbatch --exclude=NODE ...                                                               # until it is repaired

Saving: at most the time by which the affected steps are longer, by their share of all steps; at least half of it
(chosen), since other reasons may add to it. Without samples of both kinds it is unknown.

Not reported, because they are harmless: `gpu_idle`, clocks set by the owner (`applications_clocks_setting`), and a
power limit on its own (`sw_power_cap`), which a large GPU reaches whenever it is well used.

Source: NVML's clocks event reasons (nvml.h): the hardware slowdowns halve the core clock or more. The threshold is 5%
of the step. Not run on a GPU yet.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from statistics import median_high
from typing import ClassVar, NamedTuple

import msgspec

from perfkit._format import ms, percent, size
from perfkit.findings import Evidence, Finding
from perfkit.ledger.step_budget import MAJORITY, NEGLIGIBLE, StepBudget
from perfkit.measures.results.measurements import Measurements
from perfkit.measures.results.steps import Ranks
from perfkit.run.records import NodeHealth, NodeSample, Rank

ID = "node-slowed"

_COOLING = "Have the node's cooling checked, and exclude the node until then"
_POWER = "Have the node's power supply and its limits checked, and exclude the node until then"
#: Reasons that protect the hardware -> what to do about them. Heat is first, because it causes the slowdowns below it.
_HARMFUL = {
    "hw_thermal_slowdown": _COOLING,
    "sw_thermal_slowdown": _COOLING,
    "hw_power_brake_slowdown": _POWER,
    "hw_slowdown": _POWER,
}
#: Reasons for which a low clock is no problem.
_HARMLESS = frozenset({"gpu_idle", "applications_clocks_setting"})
#: The share of samples with the cause, and their number, at least (chosen): one sample may be the moment of a window.
_OFTEN, _MIN_SAMPLES = 0.10, 2
#: A clock below this part of its maximum is far below it; only samples with this utilization (in percent) count.
_LOW_CLOCK, _IN_USE = 0.5, 50
#: Intervals between samples that each side of a comparison needs.
_MIN_INTERVALS = 3
#: The low end of the saving as a share of the cost (chosen).
_LOW = 0.5


class SampledGpu(msgspec.Struct, frozen=True):
    """The GPU that decides how fast the run is: its name in messages, and its samples."""

    AVAILABLE_FROM: ClassVar[str] = "samples of an NVIDIA GPU: pip install 'perfkit[nvml]'"

    name: str
    node: NodeHealth

    @classmethod
    def from_measurements(cls, found: Measurements) -> SampledGpu | None:
        """That of the rank that the others wait for, else the recorded rank's; None without samples of it."""
        ranks = found.get(Ranks)
        slow = ranks.waited_for if ranks is not None else None
        # A rank that waits for another one loses nothing by its own GPU.
        rank = slow or found.get(Rank)
        if rank is None or rank.node is None or not rank.node.taken:
            return None
        waiting = f" (rank {rank.rank}, for which the others wait)" if slow is not None else ""
        return cls(f"{rank.node.name or 'the GPU'} of {rank.host}{waiting}", rank.node)


class Slowdown(NamedTuple):
    """Mean step times in intervals with a cause and without it, and the share of the steps in the former."""

    with_ns: int
    without_ns: int
    share: float


class GpuProblem(NamedTuple):
    """What slows the GPU: the message, what to do, which samples show it, and whether its effect is known."""

    message: str
    advice: str
    affected: Sequence[NodeSample]
    effect_known: bool = True


def check(step: StepBudget, gpu: SampledGpu) -> Iterator[Finding]:
    """Find lowered clocks that protect the hardware or have no reason, and other processes on the GPU."""
    node = gpu.node
    for problem in filter(None, (_protective_slowdown(node) or _low_clock(node), _shared(node))):
        slowdown = _compare(node, problem.affected)
        cost, compared = None, ""
        if slowdown is not None:
            cost = min(step.wall_ns, round(slowdown.share * (slowdown.with_ns - slowdown.without_ns)))
            compared = f"; affected steps take {ms(slowdown.with_ns)}, others {ms(slowdown.without_ns)}"
            if step.is_negligible(cost):
                continue
        yield step.finding(
            cost=cost,
            saving=(int(_LOW * cost), cost) if cost is not None else None,
            severity=None if cost is not None or problem.effect_known else "info",
            message=f"The node, not the program: {gpu.name} {problem.message}{compared}.",
            advice=problem.advice,
            confidence="high" if slowdown is not None else "medium" if problem.effect_known else "low",
            evidence=tuple(_evidence(node, slowdown)),
        )


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
    if len(low) < _MIN_SAMPLES or len(low) < MAJORITY * len(in_use):
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
    using = [sample for sample in measured if (sample.others_utilization or 0) >= 100 * NEGLIGIBLE]
    affected, at_least = (using, _OFTEN) if measured else (shared, MAJORITY)
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


def _evidence(node: NodeHealth, slowdown: Slowdown | None) -> Iterator[Evidence]:
    source = f"NVML, {node.taken} samples of {node.uuid}"
    for name, spread, unit in (
        ("SM clock", node.sm_mhz, "MHz"),
        ("temperature", node.temperature_c, "°C"),
        ("power", node.power_w, "W"),
        ("utilization", node.utilization, "%"),
    ):
        if spread is not None:
            yield Evidence(f"median {name}", spread.median, unit, source)
    if node.max_sm_mhz is not None:
        yield Evidence("maximum SM clock", node.max_sm_mhz, "MHz", source)
    for reason, count in sorted(node.reasons.items()):
        yield Evidence(reason, count, "samples", source)
    if slowdown is None:
        yield Evidence("cost per step", None, "ms", "too few samples of both kinds to compare steps")
        return
    yield Evidence.ms("affected step", slowdown.with_ns, "steps between samples of the node")
    yield Evidence.ms("other step", slowdown.without_ns, "steps between samples of the node")


def _compare(node: NodeHealth, affected: Sequence[NodeSample]) -> Slowdown | None:
    """Step times between samples that both show the cause, against those between samples of which neither does."""
    affected_at = {sample.at_ns for sample in affected}
    steps: dict[bool, int] = {True: 0, False: 0}
    times: dict[bool, list[float]] = {True: [], False: []}
    for before, after in itertools.pairwise(node.samples):
        count, kind = after.step - before.step, after.at_ns in affected_at
        if count > 0 and (before.at_ns in affected_at) == kind:
            steps[kind] += count
            times[kind].append((after.at_ns - before.at_ns) / count)
    if min(len(times[True]), len(times[False])) < _MIN_INTERVALS:
        return None
    # Medians: an interval may contain a validation or a checkpoint.
    with_ns, without_ns = (round(median_high(times[kind])) for kind in (True, False))
    return Slowdown(with_ns, without_ns, steps[True] / sum(steps.values()))


def _in_use(sample: NodeSample) -> bool:
    used = sample.utilization is None or sample.utilization >= _IN_USE
    return used and sample.sm_mhz is not None and _HARMLESS.isdisjoint(sample.reasons or ())
