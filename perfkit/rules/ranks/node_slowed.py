"""The node slows the GPU: heat, power, or somebody else on the same card.

Problem: a GPU lowers its clocks when it gets too hot, when the power supply cannot keep up, or at a limit that an
administrator has set, and shares its multiprocessors with every process that is on it. The same code is then slower,
and no change of the code helps. In a run of many ranks all others wait for that one: it is looked at, where there is
one, and else the rank that stands for the run.

How it shows: NVML names a reason for lower clocks that protects the hardware (thermal slowdown, hardware slowdown,
power brake) in 10% of the samples or more; or the clock of the multiprocessors stays below half of its maximum while
the GPU is in use; or another process uses 5% of the GPU or more. Where the samples allow it, steps beside are compared
with steps in the other samples, and nothing is said where they are not slower.

Causes: a cooling that fails, dust, a neighbour's heat, a room that is too warm; a power supply or rack at its limit;
a power limit or locked clocks from an earlier job; a job that was not killed, a notebook that holds the card, a
scheduler that gives one card to two.

Fix: nothing in the program. Look, and hand it to whoever runs the node.

    nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER,CLOCK      # which reason is active, at what temperature and limit
    nvidia-smi --query-compute-apps=pid,used_memory --format=csv                            # who else is on the card
    sbatch --exclude=NODE ...                                                               # until it is repaired

Gain: what the steps beside take longer than the others, by their share of the samples: at most all of it, at least
half, since a part may come with what those steps do. Without samples of both kinds there is no price.

What is harmless is not told: `gpu_idle`, clocks that the owner has set (`applications_clocks_setting`), and a power
limit by itself (`sw_power_cap`), at which a large GPU runs whenever it is well used.

Source: NVML's clocks event reasons (nvml.h): the hardware slowdowns halve the core clock or more, hence the half. 10%
and at least two samples: one may be the moment of a window. 5% as for the other rules. Not run on a GPU yet.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

from perfkit._format import ms, percent, size
from perfkit.findings import Evidence, Finding
from perfkit.measures.results.measured import Measured
from perfkit.rules._step_budget import NEGLIGIBLE, Whole, severity_of, whole_of
from perfkit.run.records import NodeHealth, NodeSample

ID = "node-slowed"

#: Reasons that protect the hardware -> what to do about them.
_HEAT = "Have the node's cooling looked at, and leave the node out until then"
_POWER = "Have the node's power supply and its limits looked at, and leave the node out until then"
_HARMFUL = {
    "hw_thermal_slowdown": _HEAT,
    "sw_thermal_slowdown": _HEAT,
    "hw_power_brake_slowdown": _POWER,
    "hw_slowdown": _POWER,
}
#: Reasons for which a low clock is nobody's fault.
_HARMLESS = frozenset({"gpu_idle", "applications_clocks_setting"})
#: How often, and in how many samples at least (see above).
_OFTEN, _FEWEST = 0.10, 2
#: Below this part of its maximum a clock is far below it; only samples in which the GPU is in use count.
_FAR, _IN_USE = 0.5, 50
#: Percent of the multiprocessors that others use; of the samples in which it is not known, the majority must have them.
_USED, _MAJORITY = 5, 0.5
#: Intervals between samples that each side of a comparison needs.
_INTERVALS = 3


class Slower(NamedTuple):
    """Mean step times in intervals with a cause and without it, and the share of the steps that are in the former."""

    with_ns: int
    without_ns: int
    share: float


def check(measured: Measured) -> Iterator[Finding]:
    """Find lowered clocks that protect the hardware or have no reason, and other processes on the GPU."""
    slow = measured.ranks.waited_for if measured.ranks is not None else None
    # A GPU whose rank waits for another one costs nothing.
    rank = slow or measured.rank
    whole = whole_of(measured)
    if rank is None or rank.node is None or whole is None or not rank.node.taken:
        return
    waits = f" (rank {rank.rank}, for which the others wait)" if slow is not None else ""
    gpu = f"{rank.node.name or 'the GPU'} of {rank.host}{waits}"
    yield from _lowered(gpu, rank.node, whole)
    yield from _shared(gpu, rank.node, whole)


def _lowered(gpu: str, node: NodeHealth, whole: Whole) -> Iterator[Finding]:
    harmful = {word: node.reasons[word] for word in _HARMFUL if node.reasons.get(word, 0) >= _FEWEST}
    often = {word: count for word, count in harmful.items() if count >= _OFTEN * node.taken}
    if often:
        # Of heat and the slowdown that it causes the heat is the cause: the order of the table.
        first = next(iter(often))
        words = ", ".join(f"{word} in {percent(count, node.taken)}" for word, count in often.items())
        cause = f"{words} of {node.taken} samples"
        advice = _HARMFUL[first]
        slower = _compare(node, lambda sample: not set(often).isdisjoint(sample.reasons or ()))
    else:
        used = [sample for sample in node.samples if _in_use(sample)]
        low = [sample for sample in used if _is_low(sample, node)]
        if len(low) < _FEWEST or len(low) < _MAJORITY * len(used):
            return
        middle = sorted(sample.sm_mhz or 0 for sample in low)[len(low) // 2]
        cause = f"clocks of {middle} MHz, the maximum is {node.max_sm_mhz} MHz, in {len(low)} of {len(used)} samples"
        capped = sum("sw_power_cap" in (sample.reasons or ()) for sample in low) > len(low) / 2
        limit = f" (power limit {node.power_limit_w:.0f} W)" if node.power_limit_w is not None else ""
        advice = f"Have the power limit looked at{limit}" if capped else "See with nvidia-smi -q -d CLOCK who set them"
        slower = _compare(node, lambda sample: _is_low(sample, node))
    yield from _finding(
        node, whole, slower, f"{gpu} lowers its clocks: {cause}", f"{advice}; the program is not at fault."
    )


def _shared(gpu: str, node: NodeHealth, whole: Whole) -> Iterator[Finding]:
    known = [sample for sample in node.samples if sample.others is not None]
    beside = [sample for sample in known if sample.others]
    measured = [sample for sample in beside if sample.others_utilization is not None]
    if len(beside) < _FEWEST:
        return
    if measured:
        using = [sample for sample in measured if (sample.others_utilization or 0) >= _USED]
        if len(using) < _FEWEST or len(using) < _OFTEN * len(known):
            return
        most = sorted(sample.others_utilization or 0 for sample in using)[len(using) // 2]
        how = f"uses {most}% of it in {len(using)} of {len(known)} samples"
    else:
        using = beside
        if len(beside) < _MAJORITY * len(known):
            return
        memory = max((sample.others_bytes or 0 for sample in beside), default=0)
        holds = f" and holds {size(memory)}" if memory else ""
        how = f"is on it in {len(beside)} of {len(known)} samples{holds}; how much it computes is not known"
    at = {sample.at_ns for sample in using}
    yield from _finding(
        node,
        whole,
        _compare(node, lambda sample: sample.at_ns in at),
        f"{gpu} is shared: another process {how}",
        "Find it with nvidia-smi, end it, or ask the scheduler for a card of your own.",
        known=bool(measured),
    )


def _finding(
    node: NodeHealth, whole: Whole, slower: Slower | None, what: str, advice: str, *, known: bool = True
) -> Iterator[Finding]:
    cost_ns = None
    beside = ""
    if slower is not None:
        cost_ns = min(whole.wall_ns, round(slower.share * (slower.with_ns - slower.without_ns)))
        if cost_ns < NEGLIGIBLE * whole.wall_ns:
            return
        beside = f"; steps beside that take {ms(slower.with_ns)}, others {ms(slower.without_ns)}"
    yield Finding(
        rule=ID,
        severity=severity_of(cost_ns, whole) if cost_ns is not None else "warning" if known else "info",
        message=f"The node, not the program: {what}{beside}.",
        advice=advice,
        confidence="high" if slower is not None else "medium" if known else "low",
        evidence=_evidence(node, slower),
        cost_ns=cost_ns,
        saving_low_ns=cost_ns // 2 if cost_ns is not None else None,
        saving_high_ns=cost_ns,
    )


def _evidence(node: NodeHealth, slower: Slower | None) -> tuple[Evidence, ...]:
    source = f"NVML, {node.taken} samples of {node.uuid}"
    found = [
        Evidence(f"median {name}", spread.median, unit, source)
        for name, spread, unit in (
            ("SM clock", node.sm_mhz, "MHz"),
            ("temperature", node.temperature_c, "°C"),
            ("power", node.power_w, "W"),
            ("utilization", node.utilization, "%"),
        )
        if spread is not None
    ]
    if node.max_sm_mhz is not None:
        found.append(Evidence("maximal SM clock", node.max_sm_mhz, "MHz", source))
    found += [Evidence(word, count, "samples", source) for word, count in sorted(node.reasons.items())]
    if slower is None:
        found.append(Evidence("lost per step", None, "ms", "too few samples of both kinds to compare steps"))
    else:
        for name, ns in (("step beside", slower.with_ns), ("other step", slower.without_ns)):
            found.append(Evidence(name, round(ns / 1e6, 3), "ms", "steps between samples of the node"))
    return tuple(found)


def _compare(node: NodeHealth, affected: Callable[[NodeSample], bool]) -> Slower | None:
    """Step times between samples that both show the cause, against those between samples of which neither does."""
    times: dict[bool, list[float]] = {True: [], False: []}
    steps: dict[bool, int] = {True: 0, False: 0}
    for before, after in itertools.pairwise(node.samples):
        if after.step <= before.step or affected(before) != affected(after):
            continue
        kind = affected(after)
        times[kind].append((after.at_ns - before.at_ns) / (after.step - before.step))
        steps[kind] += after.step - before.step
    if min(len(times[True]), len(times[False])) < _INTERVALS:
        return None
    # Medians: an interval may hold a validation or a checkpoint.
    with_ns, without_ns = (round(sorted(times[kind])[len(times[kind]) // 2]) for kind in (True, False))
    return Slower(with_ns, without_ns, steps[True] / (steps[True] + steps[False]))


def _in_use(sample: NodeSample) -> bool:
    used = sample.utilization is None or sample.utilization >= _IN_USE
    return used and sample.sm_mhz is not None and _HARMLESS.isdisjoint(sample.reasons or ())


def _is_low(sample: NodeSample, node: NodeHealth) -> bool:
    return _in_use(sample) and node.max_sm_mhz is not None and (sample.sm_mhz or 0) < _FAR * node.max_sm_mhz
