"""gc-pauses: collections are reported with the line in which most of them began."""

from __future__ import annotations

from typing import Any

import msgspec

from perfkit._location import Location
from perfkit.rules.python import gc_pauses
from perfkit.run.records import Collected, Lines

MS = 1_000_000


def collected(line: int, count: int, ms: float, owner: str = "user") -> Collected:
    return Collected(file="train.py", line=line, function="main", owner=owner, count=count, total_ns=round(ms * MS))


def test_collections_are_found_where_most_began(build: Any) -> None:
    mean = msgspec.structs.replace(build.mean_step(30), gc_ns=15 * MS)
    lines = Lines(period_ns=MS, steps=40, collected=(collected(8, 2, 90), collected(39, 40, 600)))

    [finding] = build.findings(gc_pauses, build.step(20), mean, lines)

    assert finding.spent == Location(file="train.py", line=39, function="main")
    assert "the 40 full ones in main take 15.0 ms each" in finding.message
    assert (finding.saving_low_ns, finding.saving_high_ns) == (7.5 * MS, 17.25 * MS)


def test_the_low_end_of_the_saving_is_the_full_collections(build: Any) -> None:
    mean = msgspec.structs.replace(build.mean_step(30), gc_ns=15 * MS)
    lines = Lines(period_ns=MS, steps=40, collected=(collected(39, 40, 600),))
    rank = msgspec.structs.replace(build.rank(), steps=50)

    [finding] = build.findings(gc_pauses, build.step(20), mean, lines, rank)

    assert finding.saving_low_ns == 0.85 * 600 * MS / 50


def test_short_and_unmeasured_collections_are_not_reported(build: Any) -> None:
    short = msgspec.structs.replace(build.mean_step(30), gc_ns=MS)

    assert build.findings(gc_pauses, build.step(20), short) == []
    assert build.findings(gc_pauses, build.step(20), build.mean_step(30)) == []
    assert build.findings(gc_pauses) == []


def test_collections_that_began_in_a_library_have_no_line(build: Any) -> None:
    mean = msgspec.structs.replace(build.mean_step(30), gc_ns=15 * MS)
    lines = Lines(period_ns=MS, steps=40, collected=(collected(39, 40, 600, owner="pandas"),))

    [finding] = build.findings(gc_pauses, build.step(20), mean, lines)

    assert finding.spent is None


def test_one_or_two_full_collections_in_a_run_do_not_recur(build: Any) -> None:
    mean = msgspec.structs.replace(build.mean_step(30), gc_ns=5 * MS)
    rare = Lines(period_ns=MS, steps=40, collected=(collected(39, 2, 200),))
    with_short_ones = msgspec.structs.replace(mean, gc_ns=15 * MS)

    assert build.findings(gc_pauses, build.step(20), mean, rare) == []
    [finding] = build.findings(gc_pauses, build.step(20), with_short_ones, rare)
    assert finding.cost_ns == 10 * MS  # of 40 steps
