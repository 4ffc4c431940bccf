"""Which ranks a path holds, whatever wrote it, and what is said of those that were left out."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from perfkit.errors import RunError
from perfkit.ranks.rank_sources import find_ranks
from tests.ranks.build import kineto_trace, run_folder


def ranks_of(path: str | Path) -> list[int]:
    return [source.rank for source in find_ranks(path).traces]


def test_a_run_folder_has_rows_of_each_rank_and_the_window_that_most_have(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", 3)
    for rank in range(3):
        kineto_trace(run / f"rank-{rank}" / "window-0.pt.trace.json.gz", rank, 3)
    kineto_trace(run / "rank-0" / "window-1.pt.trace.json.gz", 0, 3)
    found = find_ranks(run)
    assert [source.rank for source in found.rows] == [0, 1, 2]
    assert {Path(source.path).name for source in found.traces} == {"window-0.pt.trace.json.gz"}
    assert (found.world_size, found.missing, found.notes) == (3, (), ())


def test_ranks_that_wrote_nothing_are_missing(tmp_path: Path) -> None:
    assert find_ranks(run_folder(tmp_path / "run", 2, world_size=4)).missing == (2, 3)


def test_folders_of_several_nodes_are_one_job(tmp_path: Path) -> None:
    run_folder(tmp_path / "node0", 2, world_size=4)
    run_folder(tmp_path / "other", 4, world_size=4)
    (tmp_path / "node1").mkdir()
    for rank in (2, 3):
        shutil.move(tmp_path / "other" / f"rank-{rank}", tmp_path / "node1" / f"rank-{rank}")
    shutil.rmtree(tmp_path / "other")
    found = find_ranks(tmp_path)
    assert (found.ranks, found.notes) == ((0, 1, 2, 3), ())


def test_of_two_runs_in_one_folder_the_newer_is_read(tmp_path: Path) -> None:
    run_folder(tmp_path / "new", 2)
    old = run_folder(tmp_path / "old", 2, launch="b")
    for file in old.rglob("*"):
        os.utime(file, (1, 1))
    found = find_ranks(tmp_path)
    assert {Path(source.path).parent.name for source in found.rows} == {"new"}
    assert [note for note in found.notes if "old was left out" in note and "newer run" in note]


@pytest.mark.parametrize(
    "names",
    [
        ("node1_4711.1760000000000000001.pt.trace.json", "node1_4712.1760000000000000001.pt.trace.json"),
        ("iteration_10/rank0_trace.json", "iteration_10/rank1_trace.json"),
        ("rank-0.json.gz", "rank-1.json.gz"),
    ],
    ids=["torch", "torchtitan", "hta"],
)
def test_the_rank_that_a_trace_was_recorded_with_counts(tmp_path: Path, names: tuple[str, str]) -> None:
    # Against their names, which are not asked.
    for name, rank in zip(names, (1, 0), strict=True):
        kineto_trace(tmp_path / name, rank)
    found = find_ranks(tmp_path)
    assert [Path(source.path).name for source in found.traces] == [Path(name).name for name in reversed(names)]
    assert (found.world_size, found.notes) == (2, ())


@pytest.mark.parametrize(
    "names",
    [
        ["rank0_trace.json", "rank1_trace.json"],
        ["dp0_tp0_rank0.1760000000000000001.pt.trace.json.gz", "dp0_tp1_rank1.1760000000000000002.pt.trace.json.gz"],
        ["fit-profile-0.1760000000000000001.pt.trace.json", "fit-profile-1.1760000000000000002.pt.trace.json"],
        ["profile_0.json", "profile_1.json"],
        ["rank0/trace.json", "rank1/trace.json"],
        ["report.0.nsys-rep", "report.1.nsys-rep"],
    ],
    ids=["torchtitan", "vllm", "lightning", "accelerate", "folders", "nsys"],
)
def test_ranks_without_a_record_are_known_by_name_and_that_is_said(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        kineto_trace(tmp_path / name, None)
    found = find_ranks(tmp_path)
    assert [source.rank for source in found.traces] == [0, 1]
    assert found.notes == ("the ranks of 2 of 2 traces are known by the names of their files alone",)


def test_names_without_a_rank_are_refused_with_what_to_do(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        kineto_trace(tmp_path / name, None)
    with pytest.raises(RunError, match=r"name the files rank-0\.json"):
        find_ranks(tmp_path)


def test_of_several_folders_of_traces_the_last_with_all_ranks_is_read(tmp_path: Path) -> None:
    for iteration, ranks in ((9, 2), (10, 2), (11, 1)):
        for rank in range(ranks):
            kineto_trace(tmp_path / f"iteration_{iteration}" / f"rank{rank}_trace.json", rank)
    found = find_ranks(tmp_path)
    assert {Path(source.path).parent.name for source in found.traces} == {"iteration_10"}
    assert "of 3 folders of traces iteration_10 was read" in found.notes[0]


def test_of_several_traces_of_a_rank_the_newest_is_read(tmp_path: Path) -> None:
    for time in (1760000000000000001, 1760000000000000009):
        for rank in range(2):
            kineto_trace(tmp_path / f"node{rank}_1.{time}.pt.trace.json", rank)
    found = find_ranks(tmp_path)
    assert all("0009" in source.path for source in found.traces)
    assert found.notes == ("each rank has 2 traces, of each the newest that is not cut short was read",)


def test_a_newest_trace_that_the_end_of_the_training_cut_is_not_read(tmp_path: Path) -> None:
    for time, steps in ((1760000000000000001, 20), (1760000000000000009, 2)):
        for rank in range(2):
            kineto_trace(tmp_path / f"node{rank}_1.{time}.pt.trace.json", rank, steps=range(steps))
    assert all("0001" in source.path for source in find_ranks(tmp_path).traces)


def test_a_duplicate_of_one_rank_is_said(tmp_path: Path) -> None:
    for name, rank in (("a.json", 0), ("b.json", 1), ("b-again.json", 1)):
        kineto_trace(tmp_path / name, rank)
    found = find_ranks(tmp_path)
    assert [source.rank for source in found.traces] == [0, 1]
    assert "1 of 2 ranks have several traces" in found.notes[0]
    assert "rank 1 (2)" in found.notes[0]


def test_a_trace_of_another_job_is_left_out(tmp_path: Path) -> None:
    for rank in range(3):
        kineto_trace(tmp_path / f"rank-{rank}.json", rank, 4)
    kineto_trace(tmp_path / "rank-9.json", 9, 16)
    found = find_ranks(tmp_path)
    assert (found.ranks, found.missing) == ((0, 1, 2), (3,))
    assert "rank-9.json for one: it is of a job of 16" in found.notes[0]


def test_files_that_are_no_traces_are_counted(tmp_path: Path) -> None:
    kineto_trace(tmp_path / "rank-0.json", 0, 1)
    (tmp_path / "config.json").write_text('{"lr": 1}')
    (tmp_path / "empty.json").write_text("")
    assert find_ranks(tmp_path).notes == ("2 of 3 files were skipped because they are not traces",)


@pytest.mark.parametrize("spelling", ["pattern", "file url", "url pattern"])
def test_a_pattern_and_a_url_hold_the_same_ranks_as_the_folder(tmp_path: Path, spelling: str) -> None:
    for rank in range(2):
        kineto_trace(tmp_path / "traces" / f"rank-{rank}.json.gz", rank)
    path = {
        "pattern": f"{tmp_path}/tr*/rank-*.json.gz",
        "file url": f"file://{tmp_path}/traces",
        "url pattern": f"file://{tmp_path}/traces/*.gz",
    }[spelling]
    assert ranks_of(path) == ranks_of(tmp_path / "traces") == [0, 1]


@pytest.mark.parametrize("holds", ["nothing", "an empty folder", "no trace"])
def test_a_path_without_ranks_is_refused(tmp_path: Path, holds: str) -> None:
    if holds == "no trace":
        (tmp_path / "readme.txt").write_text("x")
    with pytest.raises(RunError, match=r"pass a run folder|holds no run \(.*\) and no trace"):
        find_ranks(tmp_path / "nowhere" if holds == "nothing" else tmp_path)


def test_a_changed_file_has_another_digest(tmp_path: Path) -> None:
    file = kineto_trace(tmp_path / "rank-0.json", 0, 1)
    before = find_ranks(tmp_path).traces[0].digest
    assert find_ranks(tmp_path).traces[0].digest == before
    kineto_trace(file, 0, 1, late_ms=5)
    assert find_ranks(tmp_path).traces[0].digest != before
