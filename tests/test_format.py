"""Numbers, paths and locations read the same everywhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfkit._format import duration, ms, ms_range, percent, relative_change, shown_location, shown_path, times
from perfkit._location import Location

MS = 1_000_000


def test_a_time_is_shown_in_the_unit_a_person_reads() -> None:
    durations = [0, 400, 340_000, 12.54 * MS, 250 * MS, 2_400 * MS, 31_000 * MS, -8 * MS]

    assert [ms(ns) for ns in durations] == [
        "0 ns", "400 ns", "340 µs", "12.5 ms", "250 ms", "2.4 s", "31 s", "-8.0 ms",
    ]  # fmt: skip


def test_a_small_part_is_never_shown_as_zero() -> None:
    assert [percent(part, 1000) for part in (0, 1, 5, 560, 1000)] == ["0%", "<1%", "<1%", "56%", "100%"]
    assert percent(1, 0) == "0%"


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (20.1, 45.2, "20.1-45.2 ms"),
        (0, 45.2, "up to 45.2 ms"),
        (0.4, 17.2, "400 µs to 17.2 ms"),
        (45.21, 45.22, "about 45.2 ms"),
    ],
)
def test_a_saving_is_shown_as_a_range(low: float, high: float, text: str) -> None:
    assert ms_range(round(low * MS), round(high * MS)) == text


def test_a_change_is_a_percentage_until_it_doubles() -> None:
    changes = [relative_change(before, after) for before, after in [(100, 44), (100, 108), (100, 520), (0, 5), (0, 0)]]

    assert changes == ["-56%", "+8%", "x5.2", "new", "0%"]


def test_durations_of_runs_and_repetitions_are_words() -> None:
    assert [duration(seconds * 1e9) for seconds in (48, 900, 33_120)] == ["48 s", "15 min", "9.2 h"]
    assert [times(count) for count in (1, 2, 3, 1.5, 64.2)] == ["once", "twice", "3 times", "1.5 times", "64 times"]


def test_a_file_below_the_current_folder_is_shown_relative_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert shown_location(Location(file=str(tmp_path / "src" / "train.py"), line=7)) == "src/train.py:7"
    assert shown_path("/elsewhere/train.py") == "/elsewhere/train.py"


def test_a_file_is_shown_in_full_if_the_current_folder_was_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    def deleted() -> str:
        raise FileNotFoundError

    monkeypatch.setattr("os.getcwd", deleted)

    assert shown_location(Location(file="/home/me/train.py", line=7)) == "/home/me/train.py:7"
