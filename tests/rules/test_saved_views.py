"""saved-views: of the time of a line that saves views, the share of the bytes that nobody needs."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perfkit._location import Location
from perfkit.rules.data import cpu_preprocessing, input_bound
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
    build: Any,
    *,
    written: int = 8,
    calls: int = 2,
    ms: float = 10,
    in_memory: bool = True,
    kind: Any = "checkpoint",
    passed: Any = (),
    **row: Any,
) -> list[Any]:
    """Of a line that takes ``ms`` of a mean step of 40 ms, and writes so many MB for one."""
    one = SavedViews(
        file="train.py", line=12, function="keep", owner="user",
        calls=calls, bytes=MB, storage_bytes=written * MB, passed_at=passed, in_memory=in_memory,
    )  # fmt: skip
    row = {"phase": "other", "samples": 100, **row}
    sampled = LineRow(file="train.py", line=12, function="keep", owner="user", host_ns=round(ms * MS), **row)
    lines = Lines(period_ns=MS, steps=40, saved_views=(one,), rows=(sampled,))
    works = [build.work("python", 20, line=13, function="keep")]
    if kind is not None:
        works.append(build.work(kind, ms, function="keep", within="torch.serialization"))
    return list(build.findings(saved_views, build.step(30), build.mean_step(40), lines, *works))


def test_the_time_of_the_line_is_the_cost_and_the_needless_bytes_are_the_saving(build: Any) -> None:
    [finding] = found(build)

    assert finding.cost_ns == 10 * MS
    # 7 of 8 MB are needless, and 4 MB each take four fifths of what a file takes.
    assert finding.saving_low_ns == pytest.approx(7 / 8 * 4 / 5 * 10 * MS)
    assert finding.saving_high_ns > 7 / 8 * 10 * MS
    assert finding.message.startswith("1.0 MB of tensors are saved as 8.0 MB, twice per step")
    assert (finding.spent, finding.change) == (SAVES, None)


def test_a_file_takes_more_whatever_its_size_than_a_pickle_in_memory(build: Any) -> None:
    # 4 MB as 4 of 9 by the bytes, and 5 of 15 ms for each of 2 files by the time.
    assert found(build, in_memory=False)[0].saving_low_ns == pytest.approx(7 / 8 * 4 / 9 * 10 * MS)
    assert found(build, in_memory=False, ms=30)[0].saving_low_ns == pytest.approx(7 / 8 * 20 * MS)


def test_what_takes_long_for_its_bytes_is_compressed_and_grows_with_them(build: Any) -> None:
    # 1 MB each: half of the time by its bytes, and 30 ms without 1 ms for each of 8 files by its time.
    assert found(build, calls=8, ms=30)[0].saving_low_ns == pytest.approx(7 / 8 * 22 * MS)
    assert found(build, calls=8, ms=12)[0].saving_low_ns == pytest.approx(7 / 8 * 6 * MS)


def test_time_in_which_the_line_waits_for_a_disk_is_not_said_to_grow_with_the_bytes(build: Any) -> None:
    within = {"torch.serialization": 100}

    [computes] = found(build, calls=8, ms=30, within=within)
    [waits] = found(build, calls=8, ms=30, within=within, waiting={"torch.serialization": 90})

    assert computes.saving_low_ns == pytest.approx(7 / 8 * 22 * MS)
    assert waits.saving_low_ns == pytest.approx(7 / 8 * 15 * MS)


def test_memories_three_times_as_large_are_no_finding(build: Any) -> None:
    assert found(build, written=3) == []


@pytest.mark.parametrize("changed", [{"ms": 1}, {"calls": 800}], ids=["little time", "files whose bytes take no time"])
def test_many_needless_bytes_that_take_no_time_at_their_line_are_information(
    build: Any, changed: dict[str, Any]
) -> None:
    [finding] = found(build, **changed)

    assert (finding.severity, finding.cost_ns) == ("info", None)
    assert "What the rest takes to write, compress or send is not known." in finding.message


def test_few_needless_bytes_that_take_no_time_are_no_finding(build: Any) -> None:
    one = SavedViews(file="train.py", line=12, function="keep", owner="user", calls=1, bytes=MB // 9, storage_bytes=MB)
    lines = Lines(period_ns=MS, steps=40, saved_views=(one,))

    assert list(build.findings(saved_views, build.step(30), build.mean_step(40), lines)) == []


def test_memories_four_times_as_large_are_a_finding(build: Any) -> None:
    assert len(found(build, written=4)) == 1


def test_the_line_to_edit_hands_the_view_to_a_function_that_saves_it(build: Any) -> None:
    assert found(build, passed=(SAVES, CALLS))[0].change == CALLS


def test_what_a_method_saves_is_changed_there(build: Any) -> None:
    method = at(30, "Store.put")

    assert found(build, passed=(SAVES, method, CALLS))[0].change == method


@pytest.mark.parametrize("within", ["torch.serialization", "torch._tensor > torch.storage > torch.serialization"])
def test_a_dataset_that_saves_in_the_training_process_counts_with_what_saves(build: Any, within: str) -> None:
    [finding] = found(build, ms=20, kind=None, phase="data", within={within: 60, "torch.nn": 30, "": 10})

    assert finding.cost_ns == 12 * MS
    assert [one.cost_ns for one in found(build, ms=20, kind=None, phase="validation", within={within: 60})] == [None]


def test_a_checkpoint_of_which_most_is_saved_views_is_at_their_line(build: Any) -> None:
    one = SavedViews(
        file="train.py", line=12, function="keep", owner="user", calls=1, bytes=MB, storage_bytes=8 * MB
    )  # fmt: skip
    lines = Lines(period_ns=MS, steps=40, saved_views=(one,))
    views = build.work("checkpoint", 8, function="keep", within="torch.serialization")
    for other_ms, line in ((5, 12), (9, 30)):
        other = build.work("checkpoint", other_ms, line=30, function="keep")
        both = msgspec.structs.replace(views, host_ns=views.host_ns + other.host_ns, lines=(*other.lines, *views.lines))
        [finding] = build.findings(checkpoint_in_step, build.step(20), build.mean_step(40), lines, both)
        assert finding.spent.line == line


def test_rules_of_the_same_time_follow_it_at_its_line() -> None:
    others = (
        checkpoint_in_step, logging_in_step, python_bound, rare_steps, waiting_in_step, cpu_preprocessing, input_bound,
    )  # fmt: skip

    assert all(saved_views.ID in rule.FOLLOWS_AT_LINE for rule in others)
