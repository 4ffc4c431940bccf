"""torch.compile: compiling that goes on, and graphs that break; what happens once is no problem."""

from __future__ import annotations

from typing import Any

import msgspec

from perfkit._location import Location
from perfkit.measures.results.host import Ops, OpTime
from perfkit.measures.results.steps import CompileCost
from perfkit.rules.compile import graph_breaks, recompiles
from perfkit.run.records import Compilation, GraphBreak

MS = 1_000_000


def cost(*, late_graphs: int, late_ms: float) -> CompileCost:
    return CompileCost(
        graphs=late_graphs + 5,
        total_ns=10_000 * MS,
        steps=90,
        late_steps=40,
        late_graphs=late_graphs,
        late_ns=round(late_ms * MS),
        late_wall_ns=4_000 * MS,
    )


CALLED_FROM = Location(file="train.py", line=42, function="main")
FORWARD = Compilation(
    compiled="forward", called_from=CALLED_FROM, count=60, recompiles=59, total_ns=9_000 * MS,
    reason="tensor 'x' size mismatch at index 1. expected 126, actual 127",
)  # fmt: skip
RESUMED_FROM = Location(file="train.py", line=50, function="main")
RESUMED = msgspec.structs.replace(
    FORWARD, compiled="resume", called_from=RESUMED_FROM, recompiles=0, total_ns=20_000 * MS
)


def test_compiling_in_every_step_is_told_where_it_is_called_and_why(build: Any) -> None:
    rank = msgspec.structs.replace(build.rank(), compilations=(RESUMED, FORWARD))
    compiles = cost(late_graphs=40, late_ms=2_000)
    measured = build.measured(step=build.step(100, forward=100), rank=rank, compiles=compiles)

    [finding] = recompiles.check(measured)

    assert (finding.file, finding.line) == ("train.py", 42)
    assert "expected 126, actual 127" in finding.message
    # 2 s in 40 steps.
    assert (finding.saving_low_ns, finding.saving_high_ns) == (35 * MS, 57.5 * MS)


def test_compiling_at_the_start_is_no_problem(build: Any) -> None:
    for late_graphs, late_ms in ((0, 0), (1, 900)):
        compiles = cost(late_graphs=late_graphs, late_ms=late_ms)
        assert list(recompiles.check(build.measured(step=build.step(100, forward=100), compiles=compiles))) == []


def test_compiling_gains_no_more_than_the_typical_step(build: Any) -> None:
    compiles = cost(late_graphs=40, late_ms=3_600)

    [finding] = recompiles.check(build.measured(step=build.step(60, forward=60), compiles=compiles))

    assert finding.cost_ns == 60 * MS


def broken(build: Any, own_ms: float) -> Any:
    reason = "Unsupported Tensor.item() call"
    line = GraphBreak(reason=reason, file="train.py", line=24, function="forward", count=17)
    rows = (
        OpTime(name="Torch-Compiled Region: 0/0", count=2, total_ns=90 * MS, self_ns=round(own_ms * MS)),
        OpTime(name="TorchDynamo Cache Lookup", count=8, total_ns=4 * MS, self_ns=4 * MS),
    )
    return build.measured(
        step=build.step(50, forward=50),
        rank=msgspec.structs.replace(build.rank(), graph_breaks={reason: 17}, break_lines=(line,)),
        ops=Ops(steps=2, count=1, wall_ns=1, rows=rows, floor_ns=None),
    )


def test_a_broken_graph_costs_what_lies_around_its_pieces_but_one(build: Any) -> None:
    [finding] = graph_breaks.check(broken(build, 12))

    # (12 + 4) / 2 ms per step in 4 pieces, of which 3 are too many: 6 ms, 0.9 to 1.8 times that.
    assert (finding.saving_low_ns, finding.saving_high_ns) == (round(5.4 * MS), round(10.8 * MS))
    assert (finding.file, finding.line) == ("train.py", 24)


def test_a_break_that_costs_little_is_for_information(build: Any) -> None:
    [finding] = graph_breaks.check(broken(build, 0.2))

    assert (finding.severity, finding.cost_ns) == ("info", None)
    whole = msgspec.structs.replace(build.rank(), graph_breaks={})
    assert list(graph_breaks.check(build.measured(step=build.step(50, forward=50), rank=whole))) == []
