"""From which line a function was called, by samples and by call paths."""

from __future__ import annotations

import msgspec

from perfkit._location import Location
from perfkit.measures.host.callers import sampled_callers
from perfkit.run.records import CallPaths, LineRow, Lines

MS = 1_000_000
MAIN = Location(file="train.py", line=90, function="main")
REPORT = Location(file="train.py", line=70, function="Previewer.report")
NO_GRAD = Location(file="torch.utils", line=None, function="decorate_context", owner="torch")
SAMPLE = Location(file="train.py", line=60, function="Previewer.sample")


def lines(paths: CallPaths | None) -> Lines:
    row = LineRow(
        file="train.py", line=60, function="Previewer.sample", phase="other", samples=9, host_ns=MS, called_from=REPORT
    )
    return Lines(period_ns=MS, steps=40, rows=(row,), paths=paths)


PATHS = CallPaths(
    frames=(MAIN, REPORT, NO_GRAD, SAMPLE),
    frame=(0, 1, 2, 3),
    parent=(-1, 0, 1, 2),
    phase=("other",) * 4,
    samples=(0, 0, 0, 9),
)


def test_a_function_whose_own_lines_were_never_sampled_has_the_caller_of_the_paths_through_it() -> None:
    without = sampled_callers(lines(None))
    found = sampled_callers(lines(PATHS))

    assert without == {("train.py", "Previewer.sample"): REPORT}
    assert found == {("train.py", "Previewer.sample"): REPORT, ("train.py", "Previewer.report"): MAIN}


def test_paths_that_are_no_tree_are_left_out() -> None:
    damaged = msgspec.structs.replace(PATHS, parent=(-1, 5, 1, 2))

    assert sampled_callers(lines(damaged)) == sampled_callers(lines(None))
