"""Which run started last."""

from __future__ import annotations

import os
from pathlib import Path

from perfkit.run.rank_writer import RankWriter, write_record
from perfkit.run.records import ClockPair, Rank, Run
from perfkit.run.run_list import runs_by_start


def a_run(folder: Path, *, started_s: int | None, written_s: int) -> None:
    """A run that recorded its start, or none yet, and whose files were written at another time."""
    folder.mkdir(parents=True)
    write_record(folder, Run(launch_id="a", command=(), folder="", world_size=1))
    if started_s is not None:
        clock = (ClockPair(perf_ns=5 * 10**9, unix_ns=(started_s + 5) * 10**9),)
        RankWriter(folder, 0).write(Rank(rank=0, launch_id="a", host="h", pid=1, start_ns=0, clock_pairs=clock))
    for path in (folder / "run.json", folder):
        os.utime(path, (written_s, written_s))


def test_runs_are_in_the_order_of_their_recorded_starts(tmp_path: Path) -> None:
    a_run(tmp_path / "second", started_s=200, written_s=900)
    a_run(tmp_path / "first", started_s=100, written_s=950)
    a_run(tmp_path / "begins", started_s=None, written_s=800)
    (tmp_path / "no run").mkdir()

    assert [path.name for path in runs_by_start(tmp_path)] == ["first", "second", "begins"]


def test_a_run_of_a_newer_perfkit_and_a_damaged_one_are_in_the_list(tmp_path: Path) -> None:
    for number, text in enumerate(('{"schema": 99}', "{", '{"schema": 2, "start_ns": -1}')):
        a_run(tmp_path / str(number), started_s=50, written_s=100 + number)
        (tmp_path / str(number) / "rank-0" / "rank.json").write_text(text)

    assert [path.name for path in runs_by_start(tmp_path)] == ["0", "1", "2"]


def test_a_folder_that_does_not_exist_has_no_runs(tmp_path: Path) -> None:
    assert runs_by_start(tmp_path / "nowhere") == []
