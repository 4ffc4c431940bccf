"""recompiles: compiling that continues; compiling once is no problem."""

from __future__ import annotations

from typing import Any

import msgspec

from perfkit._location import Location
from perfkit.measures.results.steps import CompileCost
from perfkit.rules.compile import recompiles
from perfkit.run.records import Compilation

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


FORWARD = Compilation(
    compiled="forward",
    called_from=Location(file="train.py", line=42, function="main"),
    count=60,
    recompiles=59,
    total_ns=9_000 * MS,
    reason="tensor 'x' size mismatch at index 1. expected 126, actual 127",
)
RESUMED_FROM = Location(file="train.py", line=50, function="main")
RESUMED = msgspec.structs.replace(
    FORWARD, compiled="resume", called_from=RESUMED_FROM, recompiles=0, total_ns=20_000 * MS
)


def test_compiling_in_every_step_is_reported_with_its_caller_and_reason(build: Any) -> None:
    rank = build.rank(compilations=(RESUMED, FORWARD))

    [finding] = build.findings(recompiles, build.step(100, forward=100), rank, cost(late_graphs=40, late_ms=2_000))

    assert (finding.spent.file, finding.spent.line) == ("train.py", 42)
    assert "expected 126, actual 127" in finding.message
    # 2 s in 40 steps.
    assert (finding.saving_low_ns, finding.saving_high_ns) == (35 * MS, 57.5 * MS)


def test_compiling_at_the_start_is_no_problem(build: Any) -> None:
    for late_graphs, late_ms in ((0, 0), (1, 900)):
        compiles = cost(late_graphs=late_graphs, late_ms=late_ms)
        assert build.findings(recompiles, build.step(100, forward=100), compiles) == []


def test_compiling_costs_no_more_than_the_typical_step(build: Any) -> None:
    [finding] = build.findings(recompiles, build.step(60, forward=60), cost(late_graphs=40, late_ms=3_600))

    assert finding.cost_ns == 60 * MS


def test_lengths_are_changed_at_torch_compile_and_a_counter_where_it_is_read(build: Any) -> None:
    compiled, guarded = Location(file="train.py", line=8), Location(file="train.py", line=29)
    places = {"compiled_at": compiled, "guarded_at": guarded}
    lengths = msgspec.structs.replace(FORWARD, **places)
    counter = msgspec.structs.replace(FORWARD, **places, reason="self.calls == 58  # self.calls += 1")
    found = [
        build.findings(
            recompiles,
            build.step(100, forward=100),
            build.rank(compilations=(one,)),
            cost(late_graphs=40, late_ms=2_000),
        )[0].change
        for one in (lengths, counter, FORWARD)
    ]

    assert found == [compiled, guarded, None]


def test_compiling_in_each_epoch_recurs_although_few_steps_do_it(build: Any) -> None:
    compiles = msgspec.structs.replace(cost(late_graphs=4, late_ms=1_200), late_steps=120, late_wall_ns=3_000 * MS)

    [finding] = build.findings(recompiles, build.step(15, forward=15), build.rank(compilations=(FORWARD,)), compiles)

    assert "again in one of 30 steps, 10.0 ms of 25.0 ms" in finding.message
    fewer = msgspec.structs.replace(compiles, late_graphs=3)
    assert build.findings(recompiles, build.step(15, forward=15), fewer) == []
