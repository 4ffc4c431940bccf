"""steps.jsonl of a run of any length: bounded on disk and in memory, no time is lost, and all of it can be followed."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfkit.run import step_file
from perfkit.run.merging import FIRST_ROWS, fitted, merged_in_blocks, merged_steps
from perfkit.run.records import Phases, Step, StepKind
from perfkit.run.step_file import StepFile, read_steps


def row(step: int, wall_ns: int = 10, **more: Any) -> Step:
    return Step(step=step, start_ns=step * 100, wall_ns=wall_ns, phases_ns=Phases(forward=wall_ns), **more)


def rows_of(path: Path) -> list[Step]:
    with path.open("rb") as file:
        found = read_steps(file)
    assert found.damaged == 0
    return found.rows


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file with a hundredth of the rows."""
    monkeypatch.setattr(step_file, "NEWEST_ROWS", 80)
    monkeypatch.setattr(step_file, "MERGED_ROWS", 40)
    monkeypatch.setattr(step_file, "_BLOCK", 4)


@pytest.mark.usefixtures("short")
def test_a_month_of_rows_stays_below_the_limit_and_loses_no_time(tmp_path: Path) -> None:
    file = StepFile(tmp_path / "steps.jsonl")
    longest = 0
    for step in range(5000):
        file.append([row(step)])
        if step % 40 == 0:
            longest = max(longest, len(rows_of(tmp_path / "steps.jsonl")))
    file.close()

    rows = rows_of(tmp_path / "steps.jsonl")
    assert longest <= 2 * 80 + 40 + 20
    assert sum(one.steps for one in rows) == 5000
    assert sum(one.wall_ns for one in rows) == 50_000
    assert sum(one.phases_ns.forward or 0 for one in rows) == 50_000
    # In order, without a gap and without a step that is there twice.
    assert [one.step for one in rows[1:]] == [one.step + one.steps for one in rows[:-1]]


@pytest.mark.usefixtures("short")
def test_the_first_and_the_newest_steps_have_rows_and_all_others_are_equally_detailed(tmp_path: Path) -> None:
    file = StepFile(tmp_path / "steps.jsonl")
    for step in range(0, 4000, 5):
        file.append([row(step + one) for one in range(5)])
    file.close()

    rows = rows_of(tmp_path / "steps.jsonl")
    merged = [one for one in rows if one.steps > 1]
    assert [one.steps for one in rows[:FIRST_ROWS]] == [1] * FIRST_ROWS
    assert [one.steps for one in rows[-80:]] == [1] * 80
    # Before, the first row alone had nearly all steps of a long run, and no growth could be seen.
    assert max(one.steps for one in merged) <= 4000 / len(merged) * 4
    last, size = merged[-1].step + merged[-1].steps - 1, max(one.steps for one in merged)
    assert (merged_steps(rows) or "").startswith(f"steps 10 to {last:,} are known as means of up to {size:,} steps")


@pytest.mark.usefixtures("short")
def test_windows_that_repeat_and_modes_that_alternate_are_bounded_as_well(tmp_path: Path) -> None:
    file = StepFile(tmp_path / "steps.jsonl")
    kinds: list[StepKind] = ["timed", "timed", "timed", "warmup", "window", "lines"]
    for step in range(6000):
        window = step // 6 if step % 6 > 2 else None
        file.append([row(step, mode="validation" if step % 2 else "train", kind=kinds[step % 6], window=window)])
    file.close()

    rows = rows_of(tmp_path / "steps.jsonl")
    assert len(rows) <= 2 * 80 + 40 + 20
    assert {kind: sum(one.steps for one in rows if one.kind == kind) for kind in set(kinds)} == {
        "timed": 3000,
        "warmup": 1000,
        "window": 1000,
        "lines": 1000,
    }
    # Steps of several windows belong to none of them.
    assert {one.window for one in rows if one.steps > 1} == {None}


@pytest.mark.usefixtures("short")
def test_a_launch_that_starts_again_goes_on_in_its_file_after_half_a_row(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    for start in (0, 300, 600):
        file = StepFile(path)
        for step in range(start, start + 300):
            file.append([row(step)])
        file.close()
        with path.open("ab") as again:
            again.write(b'{"step":')

    with path.open("rb") as read:
        found = read_steps(read)
    assert sum(one.steps for one in found.rows) == 900
    assert len(found.rows) <= 2 * 80 + 40 + 20
    assert found.damaged <= 2


@pytest.mark.usefixtures("short")
def test_a_disk_that_is_full_while_rows_are_merged_loses_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "steps.jsonl"
    file = StepFile(path)
    failed = 0

    def full_disk(*names: object) -> None:
        raise OSError(28, "No space left on device")

    for step in range(900):
        with monkeypatch.context() as patched:
            if 100 < step < 500:
                patched.setattr(os, "replace", full_disk)
            try:
                file.append([row(step)])
            except OSError:
                failed += 1
    file.close()

    assert 1 <= failed <= 5  # it is tried again now and then, not with every row
    assert sum(one.steps for one in rows_of(path)) == 900
    assert [one.name for one in tmp_path.iterdir()] == ["steps.jsonl"]


def test_a_file_of_any_length_is_read_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_file, "READ_ROWS", 200)
    monkeypatch.setattr(step_file, "MERGED_ROWS", 50)
    lines = msgspec.json.Encoder().encode_lines([row(step) for step in range(3000)])

    found = read_steps(io.BytesIO(lines))
    assert len(found.rows) <= 250
    assert (found.lines, sum(one.steps for one in found.rows)) == (3000, 3000)
    assert [one.steps for one in found.rows[-100:]] == [1] * 100


def test_a_line_without_end_and_a_file_of_damaged_rows_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless(io.RawIOBase):
        """As /dev/zero: a line that never ends; the test would not, if it were collected."""

        given = 0

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            size = len(buffer) if self.given < 10**8 else 0
            self.given += size
            buffer[:size] = bytes(size)
            return size

    assert read_steps(io.BufferedReader(Endless())) == ([], 0, 0)

    monkeypatch.setattr(step_file, "_MAX_DAMAGED", 50)
    assert read_steps(io.BytesIO(b"x\n" * 10_000)) == ([], 51, 51)


@given(st.lists(st.tuples(st.integers(0, 10**9), st.sampled_from(["timed", "timed", "window"])), max_size=60))
def test_merging_keeps_sums_and_never_mixes_windows_with_timed_steps(given_rows: list[tuple[int, StepKind]]) -> None:
    rows = [row(index, wall, kind=kind) for index, (wall, kind) in enumerate(given_rows)]

    for after in (merged_in_blocks(rows, 4), fitted(rows, 2, 20)[0]):
        for kind in ("timed", "window"):
            assert sum(r.wall_ns for r in after if r.kind == kind) == sum(r.wall_ns for r in rows if r.kind == kind)
            assert sum(r.steps for r in after if r.kind == kind) == sum(r.kind == kind for r in rows)


def test_no_sentence_is_said_of_rows_that_are_steps() -> None:
    assert merged_steps([row(0), row(1)]) is None
