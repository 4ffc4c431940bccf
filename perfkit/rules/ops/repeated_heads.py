"""Keys and values are copied for each head that shares them, and attention reads the copies.

Problem: with grouped queries several heads share keys and values. A copy for each head writes and reads as many times
the memory as there are heads in a group: for one new token this takes longer than the attention itself.

How it shows: what attention gets as keys or values was copied from a tensor that was expanded along its heads, and the
copies, with what their reading takes where there are few queries, are 5% of the step or more.

Causes: `repeat_kv`, `repeat_interleave(groups, dim=1)`, `expand(...).reshape(...)` before attention.

Fix: let the attention share them, or take the queries of a group as rows.

    F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    # the same for one new token, whose queries are (batch, heads, 1, dim):
    y = F.scaled_dot_product_attention(q.view(batch, kv_heads, groups, dim), k, v).view(batch, heads, 1, dim)

Saving: 70% (chosen) of the copies, up to all of them and the share of the attention that reads them.

Source: the ops of one step. With 16 heads on 4, 512 places and one query a CPU took 5.0 ms with copies, half of it in
these, 1.0 ms with `enable_gqa` and 0.5 ms with the queries as rows; with as many queries as places copies were 1%.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import times
from perfkit._location import Location
from perfkit.findings import Evidence, Finding
from perfkit.ledger.rows import COMPUTING
from perfkit.ledger.step_budget import StepBudget
from perfkit.measures.results.work import OpWorkTime, StepWork
from perfkit.rules._work_rows import busiest_place
from perfkit.run.records import Lines

ID = "repeated-heads"
CLAIMS = COMPUTING

#: The share of the copies' time that is saved at least (chosen).
_MINIMUM = 0.7
#: With so few queries attention takes as long as reading keys and values does (chosen: its products are then narrow).
_FEW_QUERIES = 16
_COPIES = frozenset({"aten::copy_", "aten::clone", "aten::repeat", "aten::contiguous", "aten::reshape"})


def check(step: StepBudget, lines: Lines, work: StepWork) -> Iterator[Finding]:
    """Find attention that reads copies of keys and values, and what the copies take."""
    for one in lines.repeated_heads:
        copies = [row for row in work.rows if row.op in _COPIES and _is_at(row, one.copied_at)]
        attention = [row for row in work.rows if _is_attention(row) and _is_at(row, (one.at,))]
        read_ns = sum(row.ns for row in attention) * (1 - 1 / one.times) if one.queries <= _FEW_QUERIES else 0.0
        copied_ns = sum(row.ns for row in copies)
        of_step = step.wall_ns / max(1, work.step_ns)
        cost = (copied_ns + read_ns) * of_step
        if step.is_negligible(cost):
            continue
        yield step.finding(
            cost=cost,
            saving=(_MINIMUM * copied_ns * of_step, step.maximum_saving(cost)),
            spent=busiest_place([*copies, *attention]),
            change=one.at,
            message=(
                f"Keys and values are copied for {one.times} heads each, {times(one.calls)} per step: the copies, and "
                f"reading them, take {step.shown(cost)}."
            ),
            advice=(
                "Pass them as they are: scaled_dot_product_attention(q, k, v, enable_gqa=True), or for one new token "
                "take the queries of a group as rows."
            ),
            confidence="medium",
            evidence=(
                Evidence.ms("copies", copied_ns, f"{work.source}, per step"),
                Evidence.ms("attention", sum(row.ns for row in attention), f"{work.source}, per step"),
            ),
        )


def _is_attention(row: OpWorkTime) -> bool:
    return "scaled_dot_product" in row.op


def _is_at(row: OpWorkTime, places: tuple[Location, ...]) -> bool:
    return row.at is not None and (row.at.file, row.at.line) in {(at.file, at.line) for at in places}
