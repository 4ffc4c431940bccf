"""Products compute with subnormal numbers, which take the processor many times as long as others.

Problem: many processors are slow with numbers closer to zero than the smallest normal one (1.2e-38 in float32). With 1%
of them in its input a product took 2.5 times as long on an Intel Xeon, with 10% 15 times, in the forward and in the
backward.

How it shows: at least 1% of the elements that go into the products of a line are subnormal, these products take more
than four times their limit on this machine, and what is beyond is 5% of the step or more.

Causes: `exp(-gamma * d * d)` over distances (radial basis functions, Gaussian kernels); probabilities multiplied over
many steps; states, momenta or activations that decay towards zero.

Fix: let the processor round them to zero, in each process that computes, or keep them from arising.

    torch.set_flush_denormal(True)              # before the training; where it returns False the processor cannot

    basis = torch.exp((-gamma * d * d).clamp(min=-80))

Saving: what the products of the line take beyond twice their limit, as products of normal numbers do. At least half of
it.

Source: the inputs of the products of one step, 8,192 elements of each; a product of 4,000 x 64 and 64 x 96, timed with
0 to 30% of such numbers (CALIBRATION.md). The other thresholds were chosen. Of one program 57% of the step was said,
and 54% of the processor time saved.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from perfkit._format import percent
from perfkit.findings import Evidence, Finding
from perfkit.ledger.ledger import NEAR_LIMIT
from perfkit.ledger.rows import COMPUTING
from perfkit.ledger.step_budget import StepBudget
from perfkit.measures.results.work import OpWorkTime, StepWork
from perfkit.run.records import Lines, MachineLimits, SubnormalInputs

ID = "subnormal-numbers"
CLAIMS = COMPUTING

#: The share of subnormal elements from which on they are reported: measured, a product takes 2.5 times as long then,
#: and with 0.3% of them 1.3 times.
_MANY = 0.01
#: Products that take this many times their limit are slow for a reason of this kind (chosen: twice is usual).
_SLOW = 4.0
#: The share of the cost that is saved at least (chosen).
_MINIMUM = 0.5
_PRODUCTS = re.compile(r"aten::(?:addmm|mm|linear|matmul|bmm|baddbmm|\w*convolution\w*|conv\d[a-z]*)$")


def check(step: StepBudget, lines: Lines, work: StepWork, limits: MachineLimits) -> Iterator[Finding]:
    """Find lines whose products have subnormal inputs, and what these products take beyond their limit."""
    places: dict[tuple[str, int], list[SubnormalInputs]] = defaultdict(list)
    for one in lines.subnormal_inputs:
        places[one.file, one.line].append(one)
    for place, found in places.items():
        subnormal, looked_at = (sum(getattr(one, name) for one in found) for name in ("subnormal", "looked_at"))
        rows = [row for row in work.rows if _is_at(row, place) and row.ns > _SLOW * _limit_ns(row, limits)]
        taken, limit = sum(row.ns for row in rows), sum(_limit_ns(row, limits) for row in rows)
        cost = (taken - limit / NEAR_LIMIT) * step.wall_ns / max(1, work.step_ns)
        if subnormal < _MANY * looked_at or step.is_negligible(cost):
            continue
        yield step.finding(
            cost=cost,
            saving=(_MINIMUM * cost, step.maximum_saving(cost)),
            spent=found[0].at,
            message=(
                f"{percent(subnormal, looked_at)} of what goes into this line's products are subnormal numbers, and "
                f"they take {taken / max(1.0, limit):.0f} times their limit: {step.shown(cost)}."
            ),
            advice="torch.set_flush_denormal(True) before the training, or keep these numbers from arising (clamp).",
            confidence="medium",
            evidence=(
                Evidence(
                    "subnormal elements", subnormal, f"of {looked_at:,}", "the inputs of a step's products, sampled"
                ),
                Evidence.ms("these products", taken, f"{work.source}, per step"),
            ),
        )


def _is_at(row: OpWorkTime, place: tuple[str, int]) -> bool:
    is_product = row.flops is not None and _PRODUCTS.match(row.op) is not None
    return is_product and row.at is not None and (row.at.file, row.at.line) == place


def _limit_ns(row: OpWorkTime, limits: MachineLimits) -> float:
    """What all calls of the row take at the machine's limit."""
    return row.calls * limits.op_limit_ns(
        row.flops or 0, row.bytes or 0, row.precision or "float32", row.kind or "matmul"
    )
