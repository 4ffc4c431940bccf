"""Deterministic algorithms are on.

Problem: `torch.use_deterministic_algorithms(True)` replaces fast algorithms by slower ones that give the same bits in
every run, and fills every uninitialized buffer (`torch.empty`) before its use.

How it shows: the setting was on in most of the steps in which it was read, and `aten::empty` contains filling.

Causes: switched on for debugging and forgotten; `Trainer(deterministic=True)`; copied from a recipe for reproducible
papers, where a seed alone would do.

Fix: switch it off where bits need not be equal. Where they must be, keep the algorithms and switch off the filling,
which only hides reads of uninitialized memory:

    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False

Saving: the filling, measured in the trace and counted by its share of its step. At most all of it, a tenth for the
algorithms, and on a CPU 15% more; at least three quarters, because memory that is not filled is still touched for the
first time by its first write. The cost of the algorithms themselves is unknown without running the others.

Source: torch's documentation of use_deterministic_algorithms and fill_uninitialized_memory. A cost below 5% of the step
is information. A tenth and three quarters were chosen. The algorithms were not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms
from perfkit.findings import Evidence, Finding
from perfkit.ledger.rows import COMPUTING
from perfkit.rules._settings import first_call, is_on
from perfkit.rules.settings._ops_in_step import OpsInStep
from perfkit.run.records import Rank

ID = "deterministic-mode"
CLAIMS = COMPUTING

#: Ops that return memory as it is; in deterministic mode the filling is all that happens inside them.
_ALLOCATE = ("aten::empty", "aten::empty_strided", "aten::resize_")
#: The share of the filling that is saved at least: chosen.
_MINIMUM = 0.75
#: The cost of the filling and the algorithms at most, against that of the filling: chosen.
_WITH_ALGORITHMS = 1.1


def check(rank: Rank, ops: OpsInStep | None = None) -> Iterator[Finding]:
    """Find deterministic mode, the line that switches it on, and what filling buffers costs."""
    if not is_on(rank, "torch.deterministic"):
        return
    advice = (
        "Switch it off, or keep the algorithms and switch off the filling: "
        "torch.utils.deterministic.fill_uninitialized_memory = False"
    )
    algorithms = Evidence.ms("slower algorithms", None, "unknown without running the others")
    spent = first_call(rank, "use_deterministic_algorithms", "full_determinism", "deterministic")
    if ops is None:
        yield Finding(
            severity="info",
            message="Deterministic mode is on; its cost is unknown.",
            advice=advice,
            evidence=(Evidence.ms("filling buffers", None, "there is no trace"), algorithms),
            spent=spent,
        )
        return
    step = ops.step
    filled_ns = ops.time(row.total_ns - row.self_ns for row in ops.rows if row.name in _ALLOCATE)
    cost = min(step.wall_ns, round(filled_ns))
    yield step.finding(
        cost=cost,
        saving=(_MINIMUM * cost, step.maximum_saving(_WITH_ALGORITHMS * cost)),
        message=(f"Deterministic mode is on: filling buffers takes {ms(cost)} of the {ms(step.wall_ns)} {step.per}."),
        advice=advice,
        confidence="high",
        evidence=(Evidence.ms("filling buffers", cost, ops.source), algorithms),
        spent=spent,
    )
