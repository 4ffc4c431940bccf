"""Collections are told with the line in which most of them began; where none was measured nothing is said."""

from __future__ import annotations

from typing import Any

import msgspec

from perfkit.rules.python.gc_pauses import check
from perfkit.run.records import Collected, Lines

MS = 1_000_000


def collected(line: int, count: int, ms: float, owner: str = "user") -> Collected:
    return Collected(file="train.py", line=line, function="main", owner=owner, count=count, total_ns=round(ms * MS))


def test_collections_are_found_where_most_began(build: Any) -> None:
    every = msgspec.structs.replace(build.step(30), gc_ns=15 * MS)
    lines = Lines(period_ns=MS, steps=40, collected=(collected(8, 2, 90), collected(39, 40, 600)))

    [finding] = check(build.measured(step=build.step(20), every_step=every, lines=lines))

    assert (finding.file, finding.line) == ("train.py", 39)
    assert "the 40 full ones in main take 15.0 ms each" in finding.message
    assert (finding.saving_low_ns, finding.saving_high_ns) == (7.5 * MS, 17.25 * MS)


def test_what_goes_for_certain_are_the_full_collections(build: Any) -> None:
    every = msgspec.structs.replace(build.step(30), gc_ns=15 * MS)
    lines = Lines(period_ns=MS, steps=40, collected=(collected(39, 40, 600),))
    rank = msgspec.structs.replace(build.rank(), steps=50)

    [finding] = check(build.measured(step=build.step(20), every_step=every, lines=lines, rank=rank))

    assert finding.saving_low_ns == 0.85 * 600 * MS / 50


def test_short_and_unmeasured_collections_are_silent(build: Any) -> None:
    short = msgspec.structs.replace(build.step(30), gc_ns=MS)

    assert not list(check(build.measured(step=build.step(20), every_step=short)))
    assert not list(check(build.measured(step=build.step(20), every_step=build.step(30))))
    assert not list(check(build.measured()))


def test_collections_that_began_in_a_library_have_no_line(build: Any) -> None:
    every = msgspec.structs.replace(build.step(30), gc_ns=15 * MS)
    lines = Lines(period_ns=MS, steps=40, collected=(collected(39, 40, 600, owner="pandas"),))

    [finding] = check(build.measured(step=build.step(20), every_step=every, lines=lines))

    assert finding.file is None
