"""graph-breaks: what the pieces of a broken graph cost."""

from __future__ import annotations

from typing import Any

from perfkit.findings import Finding
from perfkit.rules.compile import graph_breaks
from perfkit.run.records import GraphBreak

MS = 1_000_000


def broken(build: Any, own_ms: float) -> Finding:
    """The finding where compiled regions take ``own_ms`` outside ops, in two steps of the trace."""
    reason = "Unsupported Tensor.item() call"
    line = GraphBreak(reason=reason, file="train.py", line=24, function="forward", count=17)
    rank = build.rank(graph_breaks={reason: 17}, break_lines=(line,))
    ops = build.ops(("Torch-Compiled Region: 0/0", 2, 90, own_ms), ("TorchDynamo Cache Lookup", 8, 4, 4))
    [finding] = build.findings(graph_breaks, build.step(50, forward=50), rank, ops)
    return finding


def test_a_broken_graph_costs_the_time_around_its_pieces_but_one(build: Any) -> None:
    finding = broken(build, 12)

    # (12 + 4) / 2 ms per step in 4 pieces, of which 3 are too many: 6 ms, 0.9 to 1.8 times that.
    assert (finding.saving_low_ns, finding.saving_high_ns) == (round(5.4 * MS), round(10.8 * MS))
    assert (finding.spent.file, finding.spent.line) == ("train.py", 24)


def test_a_break_that_costs_little_is_information(build: Any) -> None:
    finding = broken(build, 0.2)

    assert (finding.severity, finding.cost_ns) == ("info", None)


def test_a_model_without_breaks_is_not_reported(build: Any) -> None:
    assert build.findings(graph_breaks, build.step(50, forward=50), build.rank()) == []
