"""Deterministic algorithms are on.

Problem: `torch.use_deterministic_algorithms(True)` replaces fast algorithms by slower ones that give the same
bits in every run, and fills every uninitialized buffer (`torch.empty`) before its use.

How it shows: the setting was on in most of the steps that were looked at, and `aten::empty` has filling inside it.

Causes: switched on for debugging and forgotten; `Trainer(deterministic=True)`; copied from a recipe for
reproducible papers, where a seed alone would do.

Fix: leave it off where bits need not be equal. Where they must be, keep the algorithms and drop the filling,
which only hides reads of uninitialized memory:

    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False

Gain: the filling, measured in the trace and counted by its share of its step. High end: all of it, and a tenth for
the algorithms; low end: three quarters, since memory that is not filled is still touched for the first time by whoever
writes to it. What the algorithms themselves cost cannot be told without running the others: that is null.

Source: torch's documentation of use_deterministic_algorithms and fill_uninitialized_memory. A cost under 5% of
the step is told for information. The algorithms on a GPU: not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms
from perfkit.findings import Evidence, Finding
from perfkit.measures.results.measured import Measured
from perfkit.rules._settings import first_call, is_on
from perfkit.rules._step_budget import severity_of, trace_scale, whole_of, with_beyond

ID = "deterministic-mode"

#: Ops that give memory as it is; in deterministic mode the filling is all that happens inside them.
_ALLOCATE = ("aten::empty", "aten::empty_strided", "aten::resize_")
#: What of the filling goes for certain (see above).
_GOES = 0.75
#: What the algorithms may cost on top of the filling, at the high end (see above).
_ALGORITHMS = 1.1


def check(measured: Measured) -> Iterator[Finding]:
    """Find deterministic mode, the line that switches it on, and what filling buffers costs."""
    rank = measured.rank
    if rank is None or not is_on(rank, "torch.deterministic"):
        return
    whole, ops = whole_of(measured), measured.ops
    at = first_call(rank, "use_deterministic_algorithms", "deterministic")
    cost_ns = None
    if whole is not None and ops is not None and ops.steps:
        filled = sum(row.total_ns - row.self_ns for row in ops.rows if row.name in _ALLOCATE) / ops.steps
        cost_ns = min(whole.wall_ns, round(filled * trace_scale(measured)))
    evidence = (
        Evidence(
            "filling buffers",
            round(cost_ns / 1e6, 3) if cost_ns is not None else None,
            "ms",
            f"trace, {ops.steps} steps" if cost_ns is not None and ops is not None else "there is no trace",
        ),
        Evidence("slower algorithms", None, "ms", "cannot be told without running the others"),
    )
    if cost_ns is not None and whole is not None:
        message = (
            f"Deterministic mode is on: filling buffers takes {ms(cost_ns)} of the {ms(whole.wall_ns)} {whole.per}."
        )
        severity = severity_of(cost_ns, whole)
    else:
        message, severity = "Deterministic mode is on; what it costs is not known here.", "info"
    yield Finding(
        rule=ID,
        severity=severity,
        message=message,
        advice=(
            "Leave it off, or keep the algorithms and drop the filling: "
            "torch.utils.deterministic.fill_uninitialized_memory = False"
        ),
        confidence="high" if cost_ns is not None else "medium",
        evidence=evidence,
        file=at.file if at else None,
        line=at.line if at else None,
        function=at.function if at else None,
        cost_ns=cost_ns,
        saving_low_ns=round(_GOES * cost_ns) if cost_ns is not None else None,
        saving_high_ns=with_beyond(_ALGORITHMS * cost_ns, measured, whole)
        if cost_ns is not None and whole is not None
        else None,
    )
