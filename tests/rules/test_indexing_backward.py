"""indexing-backward: rows taken by indexing are reported at the most expensive line, where their backward sorts."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from perfkit._location import Location
from perfkit.findings import Finding
from perfkit.measures.results.patterns import IndexingGradient
from perfkit.rules.ops import indexing_backward

MS = 1_000_000


def rows(line: int, ms: float) -> IndexingGradient:
    at = Location(file="net.py", line=line, function="forward")
    return IndexingGradient(
        count=3, ns=round(ms * MS), at=at, shape="10000x64", columns=64, taken=60_000, dtype="float"
    )


def found(build: Any, *indexing: IndexingGradient, **settings: str) -> list[Finding]:
    """In a step of 100 ms on a device."""
    rank = build.rank(settings={f"torch.{name}": value for name, value in settings.items()})
    measures = build.traced_step(100), build.device(1000, compute=1000), build.patterns(indexing=indexing), rank
    return build.findings(indexing_backward, *measures)  # type: ignore[no-any-return]


def test_rows_cost_the_kernels_of_their_backward_of_which_none_may_be_saved(build: Any) -> None:
    [one] = found(build, rows(10, 4), rows(20, 8))

    assert (one.cost_ns, one.saving_low_ns, one.saving_high_ns) == (12 * MS, 0, 12 * MS)
    assert one.spent == Location(file="net.py", line=20, function="forward")
    assert one.severity == "warning"
    assert "takes 60,000 rows of a tensor of 10000x64" in one.message
    assert "x.index_select(0, index)" in one.advice


@pytest.mark.parametrize("indexing", [(), (rows(10, 4.9),)], ids=["none", "below 5% of the step"])
def test_little_time_is_not_reported(build: Any, indexing: tuple[IndexingGradient, ...]) -> None:
    assert found(build, *indexing) == []


def test_in_deterministic_mode_index_add_sorts_as_well(build: Any) -> None:
    assert found(build, rows(10, 20), deterministic="True") == []
    assert len(found(build, rows(10, 20), deterministic="False")) == 1


def on_cpu(build: Any, one: IndexingGradient, threads: int = 2) -> list[Finding]:
    """In a step of 100 ms without a device."""
    patterns = build.patterns(step_ms=100, indexing=(one,))
    return build.findings(indexing_backward, build.step(100), patterns, build.rank(threads=threads))  # type: ignore[no-any-return]


def test_on_a_cpu_with_threads_each_number_is_added_atomically(build: Any) -> None:
    [one] = on_cpu(build, rows(10, 20))

    assert one.cost_ns == 20 * MS
    assert one.saving_low_ns == pytest.approx(9 * MS)
    assert "atomic" in one.message


@pytest.mark.parametrize(
    ("how", "threads"),
    [
        ({}, 1),
        ({"columns": 8}, 2),
        ({"dtype": "double"}, 2),
        ({"taken": 100}, 2),
        ({"ns": 9 * MS}, 2),
    ],
    ids=["one thread", "narrow rows", "float64", "few rows", "below a tenth of the step"],
)
def test_on_a_cpu_where_nothing_is_saved_it_is_silent(build: Any, how: dict[str, Any], threads: int) -> None:
    assert on_cpu(build, replace(rows(10, 20), **how), threads) == []


def test_a_trace_of_a_cpu_alone_does_not_tell_the_threads(build: Any) -> None:
    patterns = build.patterns(step_ms=100, indexing=(rows(10, 20),))

    assert build.findings(indexing_backward, build.step(100), patterns) == []


def test_in_half_precision_sums_would_be_rounded_so_nothing_is_advised(build: Any) -> None:
    assert found(build, replace(rows(10, 20), dtype="c10::BFloat16")) == []
