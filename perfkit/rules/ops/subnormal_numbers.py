"""Ops compute with subnormal numbers, which take the processor many times as long as others.

Problem: many processors are slow with numbers closer to zero than the smallest normal one (1.2e-38 in float32). With 1%
of them in its input a product took 2.5 times as long on an Intel Xeon, with 10% 15 times, in the forward and in the
backward.

How it shows: at least 1% of the elements that go into the products, or the arithmetic, of a line are subnormal, or of
the states of optimizers, these ops take more than four times their limit on this machine, and what is beyond is, in a
function, 5% of the step or more. Nothing is reported of a machine that was measured to be as fast with them.

Causes: `exp(-gamma * d * d)` over distances (radial basis functions, Gaussian kernels); probabilities multiplied over
many steps; states or activations that decay towards zero; averages of an optimizer for weights without gradients
(pruned ones, rows of a table that are not looked up), 700 steps later.

Fix: let the processor round them to zero, in each process that computes, or keep them from arising.

    torch.set_flush_denormal(True)              # before the training; where it returns False the processor cannot

    basis = torch.exp((-gamma * d * d).clamp(min=-80))

Saving: what these ops take beyond twice their limit, as those of normal numbers do, and beyond it no more than 1,000
times the share of subnormal elements. At least half of it.

Source: the inputs of the ops of one step, up to 8,192 elements of each; a product of 4,000 x 64 and 64 x 96, timed with
0 to 30% of such numbers (CALIBRATION.md). The other thresholds were chosen. Of one program 57% of the step was said,
and 54% of the processor time saved.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from perfkit._format import percent
from perfkit._location import Location
from perfkit.findings import Evidence, Finding
from perfkit.ledger.ledger import NEAR_LIMIT
from perfkit.ledger.rows import COMPUTING
from perfkit.ledger.step_budget import StepBudget
from perfkit.measures.results.work import OpWorkTime, StepWork
from perfkit.rules._work_rows import busiest_place, limit_ns
from perfkit.run.records import Lines, MachineLimits, Rank, SubnormalInputs

ID = "subnormal-numbers"
CLAIMS = COMPUTING

#: The share of subnormal elements from which on they are reported: measured, a product takes 2.5 times as long then,
#: and with 0.3% of them 1.3 times.
_MANY = 0.01
#: Products that take this many times their limit are slow for a reason of this kind (chosen: twice is usual).
_SLOW = 4.0
#: The share of the cost that is saved at least (chosen).
_MINIMUM = 0.5
#: Nothing is reported where a machine's ops take less than this many times as long with subnormal numbers (chosen:
#: products take 1.0 times as long on a recent EPYC, 15 times on a Xeon).
_SLOWED = 2.0
#: So many times longer an op takes at most, times the share of subnormal elements in its inputs: 150 was measured in a
#: product, and the share is the mean of a line's ops. What takes longer has another reason.
_PER_ELEMENT = 1_000
#: Bytes between two ops of an update, after which nothing is in the caches: ops then cost the most.
_COLD = 2**23
_OPS = re.compile(
    r"aten::(?:addmm|mm|linear|matmul|bmm|baddbmm|\w*convolution\w*|conv\d[a-z]*|mul_?|add_?|sub_?|div_?|addcmul_?|lerp_?)$"
)


class _Slow(NamedTuple):
    """The slow ops of a line: their time and their limit, and the elements of their inputs that were looked at."""

    at: Location
    subnormal: int
    looked_at: int
    taken_ns: float
    limit_ns: float


def check(
    step: StepBudget, lines: Lines, work: StepWork, limits: MachineLimits, rank: Rank | None = None
) -> Iterator[Finding]:
    """Find lines whose products have subnormal inputs, and optimizers with such states, and what their ops take."""
    if 0 < limits.subnormals < _SLOWED:
        return
    places: dict[tuple[str, int], list[SubnormalInputs]] = defaultdict(list)
    for one in lines.subnormal_inputs:
        places[one.file, one.line].append(one)
    functions: dict[tuple[str, str], list[_Slow]] = defaultdict(list)
    for place, found in places.items():
        if (slow := _slow_ops(place, found, work, limits)) is not None:
            functions[slow.at.file, found[0].function].append(slow)
    yield from _of_states(step, work, limits, rank)
    for of_function in functions.values():
        taken, limit = (sum(getattr(one, name) for one in of_function) for name in ("taken_ns", "limit_ns"))
        cost = (taken - limit / NEAR_LIMIT) * step.wall_ns / max(1, work.step_ns)
        if step.is_negligible(cost):
            continue
        worst = max(of_function, key=lambda one: one.taken_ns)
        yield step.finding(
            cost=cost,
            saving=(_MINIMUM * cost, step.maximum_saving(cost)),
            spent=worst.at,
            message=(
                f"{percent(worst.subnormal, worst.looked_at)} of what goes into this line's ops are subnormal numbers, "
                f"and they take {taken / max(1.0, limit):.0f} times their limit: {step.shown(cost)}."
            ),
            advice="torch.set_flush_denormal(True) before the training, or keep these numbers from arising (clamp).",
            confidence="medium",
            evidence=(
                Evidence(
                    "subnormal elements",
                    worst.subnormal,
                    f"of {worst.looked_at:,}",
                    "the inputs of a step's ops, sampled",
                ),
                Evidence.ms("ops with them", round(taken), f"{work.source}, per step"),
            ),
        )


def _of_states(step: StepBudget, work: StepWork, limits: MachineLimits, rank: Rank | None) -> Iterator[Finding]:
    """Find optimizers whose states are subnormal, as the averages of weights without gradients become in time."""
    share = float(rank.settings.get("optimizer.subnormal_share", 0)) if rank is not None else 0.0
    phase, rows = step.phase("optimizer"), [row for row in work.rows if row.phase == "optimizer"]
    if share < _MANY or phase is None or not rows or step.device is not None:
        return
    # The ops were recorded early in the run, where the states need not be subnormal yet; what they move stays the same.
    limit = sum(limit_ns(row, limits) + row.ops * limits.overhead_ns("op", _COLD) for row in rows)
    cost = phase.ns - limit / NEAR_LIMIT
    if phase.ns < _SLOW * limit or step.is_negligible(cost):
        return
    yield step.finding(
        cost=cost,
        saving=(_MINIMUM * cost, step.maximum_saving(cost)),
        spent=busiest_place(rows),
        message=(
            f"{percent(share, 1)} of the optimizer's averages are subnormal numbers, and its update takes "
            f"{phase.ns / max(1.0, limit):.0f} times its limit: {step.shown(cost)}."
        ),
        advice="torch.set_flush_denormal(True) before the training: what has no gradients decays to such numbers.",
        confidence="medium",
        evidence=(
            Evidence("subnormal elements", round(100 * share, 1), "%", "the optimizers' states between steps, sampled"),
            Evidence.ms("the update", phase.ns, step.source),
            Evidence.ms("its limit", round(limit), f"{work.source}, measured on {limits.cpu}"),
        ),
    )


def _slow_ops(
    place: tuple[str, int], found: Sequence[SubnormalInputs], work: StepWork, limits: MachineLimits
) -> _Slow | None:
    """The ops of a line that have such inputs and are slow; None where few of the inputs are."""
    subnormal, looked_at = (sum(getattr(one, name) for one in found) for name in ("subnormal", "looked_at"))
    if subnormal < _MANY * looked_at:
        return None
    slowest = 1 + _PER_ELEMENT * subnormal / max(1, looked_at)
    rows = [row for row in work.rows if _is_at(row, place) and row.ns > _SLOW * limit_ns(row, limits)]
    return _Slow(
        found[0].at,
        subnormal,
        looked_at,
        sum(min(row.ns, slowest * limit_ns(row, limits)) for row in rows),
        sum(limit_ns(row, limits) for row in rows),
    )


def _is_at(row: OpWorkTime, place: tuple[str, int]) -> bool:
    is_known = (row.flops or row.bytes) is not None and _OPS.match(row.op) is not None
    return is_known and row.at is not None and (row.at.file, row.at.line) == place
