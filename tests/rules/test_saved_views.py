"""saved-views: of the time of a line that saves views, the share of the bytes that nobody needs."""

from __future__ import annotations

from typing import Any

import pytest

from perfkit._location import Location
from perfkit.rules.data import cpu_preprocessing
from perfkit.rules.python import (
    checkpoint_in_step,
    logging_in_step,
    python_bound,
    rare_steps,
    saved_views,
    waiting_in_step,
)
from perfkit.run.records import LineRow, Lines, SavedViews

MS = 1_000_000
MB = 1_000_000


def at(line: int, function: str) -> Location:
    return Location(file="train.py", line=line, function=function, owner="user")


SAVES, CALLS = at(12, "keep"), at(40, "main")


def found(
    build: Any, needed: int = 1, written: int = 8, *, calls: int = 2, ms: float = 10, passed: Any = (), **row: Any
) -> list[Any]:
    """Of a line that takes ``ms`` of a mean step of 40 ms, with so many kB of memories in its pickles."""
    one = SavedViews(
        file="train.py", line=12, function="keep", owner="user",
        calls=calls, bytes=needed * MB, storage_bytes=written * MB, passed_at=passed,
    )  # fmt: skip
    sampled = LineRow(
        file="train.py",
        line=12,
        function="keep",
        owner="user",
        phase="other",
        samples=100,
        host_ns=round(ms * MS),
        **row,
    )
    lines = Lines(period_ns=MS, steps=40, saved_views=(one,), rows=(sampled,))
    work = build.work("checkpoint", ms, function="keep", within="torch.serialization")
    other = build.work("python", 20, line=13, function="keep")
    return list(build.findings(saved_views, build.step(30), build.mean_step(40), lines, work, other))


def test_the_time_of_the_line_is_the_cost_and_the_needless_bytes_are_the_saving(build: Any) -> None:
    [finding] = found(build)

    assert finding.cost_ns == 10 * MS
    # 7 of 8 MB are needless, and 4 MB each take four fifths of what a file takes.
    assert finding.saving_low_ns == pytest.approx(7 / 8 * 4 / 5 * 10 * MS)
    assert finding.saving_high_ns > 7 / 8 * 10 * MS
    assert finding.message.startswith("1.0 MB of tensors are saved as 8.0 MB, twice per step")
    assert (finding.spent, finding.change) == (SAVES, None)


def test_what_takes_long_for_its_bytes_is_compressed_and_grows_with_them(build: Any) -> None:
    # 1 MB each: half of the time by its bytes, and 30 ms without 1 ms for each of 8 files by its time.
    assert found(build, calls=8, ms=30)[0].saving_low_ns == pytest.approx(7 / 8 * 22 * MS)
    assert found(build, calls=8, ms=12)[0].saving_low_ns == pytest.approx(7 / 8 * 6 * MS)


def test_time_in_which_the_line_waits_for_a_disk_is_not_said_to_grow_with_the_bytes(build: Any) -> None:
    few = {"calls": 1, "needed": 0, "written": 1, "ms": 30, "within": {"torch.serialization": 100}}

    [computes] = found(build, **few)
    [waits] = found(build, **few, waiting={"torch.serialization": 90})

    assert computes.saving_low_ns == pytest.approx((1 - 1 / 30) * 30 * MS)
    assert waits.saving_low_ns == pytest.approx(0.5 * 30 * MS)


@pytest.mark.parametrize(
    "changed",
    [{"written": 3}, {"ms": 1}, {"calls": 800}],
    ids=["memories three times as large", "little time", "files whose bytes take no time"],
)
def test_what_copies_would_not_save_is_no_finding(build: Any, changed: dict[str, Any]) -> None:
    assert found(build, **changed) == []


def test_memories_four_times_as_large_are_a_finding(build: Any) -> None:
    assert len(found(build, written=4)) == 1


def test_the_line_to_edit_hands_the_view_to_a_function_that_saves_it(build: Any) -> None:
    assert found(build, passed=(SAVES, CALLS))[0].change == CALLS


def test_what_a_method_saves_is_changed_there(build: Any) -> None:
    method = at(30, "Store.put")

    assert found(build, passed=(SAVES, method, CALLS))[0].change == method


def test_rules_of_the_same_time_follow_it_at_its_line() -> None:
    others = (checkpoint_in_step, logging_in_step, python_bound, rare_steps, waiting_in_step, cpu_preprocessing)

    assert all(saved_views.ID in rule.FOLLOWS_AT_LINE for rule in others)
