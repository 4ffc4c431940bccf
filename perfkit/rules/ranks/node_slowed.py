"""The node slows the GPU: heat, power, or another process on the same card.

Problem: a GPU lowers its clocks when it gets too hot, when the power supply cannot keep up, or at a limit that an
administrator has set, and it shares its multiprocessors with every process on it. The same code is then slower, and no
change of the code helps. In a run of many ranks, the GPU of the rank that the others wait for is checked, if there is
such a rank.

How it shows: NVML, or DCGM (--node-metrics), reports a reason for lower clocks that protects the hardware (thermal
slowdown, hardware slowdown, power brake) in at least 10% of the samples; or the clock of the multiprocessors is below
half of its maximum while the GPU is in use; or another process uses at least 5% of the GPU. Where the samples allow it,
steps with the cause are compared with the others; nothing is reported where they are not slower.

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

from perfkit._format import ms
from perfkit.findings import Evidence, Finding
from perfkit.ledger.step_budget import StepBudget
from perfkit.measures.ranks.gpu_slowdown import gpu_problems
from perfkit.measures.results.measurements import Measurements
from perfkit.measures.results.steps import Ranks
from perfkit.run.records import NodeHealth, NodeSample, Rank

ID = "node-slowed"

#: Intervals between samples that each side of a comparison needs.
_MIN_INTERVALS = 3
#: The low end of the saving as a share of the cost (chosen).
_LOW = 0.5


class SampledGpu(msgspec.Struct, frozen=True):
    """The GPU that decides how fast the run is: its name in messages, and its samples."""

    AVAILABLE_FROM: ClassVar[str] = (
        "samples of an NVIDIA GPU: pip install 'perfkit[nvml]', or --node-metrics FILE of DCGM"
    )

    name: str
    node: NodeHealth

    @classmethod
    def from_measurements(cls, found: Measurements) -> SampledGpu | None:
        """That of the rank that the others wait for, else the recorded rank's; None without samples of it.

        Of a trace, which has no such record, the one that a file of DCGM was matched to.
        """
        ranks = found.get(Ranks)
        slow = ranks.waited_for if ranks is not None else None
        # A rank that waits for another one loses nothing by its own GPU.
        rank = slow or found.get(Rank)
        if rank is None and (of_trace := found.get(NodeHealth)) is not None and of_trace.taken:
            return cls(of_trace.name or "the GPU", of_trace)
        if rank is None or rank.node is None or not rank.node.taken:
            return None
        waiting = f" (rank {rank.rank}, for which the others wait)" if slow is not None else ""
        return cls(f"{rank.node.name or 'the GPU'} of {rank.host}{waiting}", rank.node)


class Slowdown(NamedTuple):
    """Mean step times in intervals with a cause and without it, and the share of the steps in the former."""

    with_ns: int
    without_ns: int
    share: float


def check(step: StepBudget, gpu: SampledGpu) -> Iterator[Finding]:
    """Find lowered clocks that protect the hardware or have no reason, and other processes on the GPU."""
    node = gpu.node
    for problem in gpu_problems(node):
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


def _evidence(node: NodeHealth, slowdown: Slowdown | None) -> Iterator[Evidence]:
    source = f"{node.source}, {node.taken} samples of {node.uuid or 'the GPU'}"
    for name, spread, unit in (
        ("SM clock", node.sm_mhz, "MHz"),
        ("temperature", node.temperature_c, "°C"),
        ("power", node.power_w, "W"),
        ("utilization", node.utilization, "%"),
    ):
        if spread is not None:
            yield Evidence(f"median {name}", spread.median, unit, source)
    if node.memory_bytes is not None:
        yield Evidence("median memory in use", round(node.memory_bytes.median / 2**20), "MiB", source)
    if node.xid:
        yield Evidence("last XID error", node.xid, "", source)
    if node.ecc_errors:
        yield Evidence("double-bit memory errors", node.ecc_errors, "", source)
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
        if before.at_ns is None or after.at_ns is None or before.step is None or after.step is None:
            continue
        count, kind = after.step - before.step, after.at_ns in affected_at
        if count > 0 and (before.at_ns in affected_at) == kind:
            steps[kind] += count
            times[kind].append((after.at_ns - before.at_ns) / count)
    if min(len(times[True]), len(times[False])) < _MIN_INTERVALS:
        return None
    # Medians: an interval may contain a validation or a checkpoint.
    with_ns, without_ns = (round(median_high(times[kind])) for kind in (True, False))
    return Slowdown(with_ns, without_ns, steps[True] / sum(steps.values()))
