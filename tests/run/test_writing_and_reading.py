"""The run folder: what is written can be read, at any moment, and never belongs to two launches."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from perfkit.errors import RunError, UsageError
from perfkit.run.arrays import read_line_times, write_line_times, write_spans
from perfkit.run.atomic import write_atomically
from perfkit.run.file_names import lines_path, spans_path, stacks_path, trace_name
from perfkit.run.folder_claim import claim_folder
from perfkit.run.merging import merged
from perfkit.run.rank_writer import RankWriter, write_record
from perfkit.run.reading import RankFolder, read_run
from perfkit.run.records import LineTimes, Phases, RangeRow, RangeSpan, Rank, Run, Step, UserCode


def row(step: int, wall_ns: int = 10, **more: Any) -> Step:
    return Step(step=step, start_ns=step * 100, wall_ns=wall_ns, phases_ns=Phases(forward=wall_ns), **more)


def write_rows(folder: Path, rank: int, *rows: Step) -> None:
    writer = RankWriter(folder, rank)
    writer.append_steps(rows)
    writer.close()


def rank_record(launch: str = "a") -> Rank:
    return Rank(rank=0, launch_id=launch, host="h", pid=1, start_ns=0)


def run_record(launch: str = "a", world_size: int = 1) -> Run:
    return Run(launch_id=launch, command=("train.py",), folder="here", world_size=world_size)


def test_rows_can_be_read_while_the_run_is_still_being_written(tmp_path: Path) -> None:
    writer = RankWriter(tmp_path, 0)
    writer.append_steps([row(0), row(1)])

    assert [step.step for step in read_run(tmp_path).ranks[0].steps] == [0, 1]
    writer.close()


def test_a_row_cut_off_in_the_middle_is_left_for_the_next_reader(tmp_path: Path) -> None:
    write_rows(tmp_path, 0, row(0), row(1))
    path = tmp_path / "rank-0" / "steps.jsonl"
    path.write_bytes(path.read_bytes()[:-20])

    rank = read_run(tmp_path).ranks[0]
    assert [step.step for step in rank.steps] == [0]
    assert rank.lost == []


def test_a_damaged_row_is_skipped_and_reported(tmp_path: Path) -> None:
    write_rows(tmp_path, 0, row(0))
    with (tmp_path / "rank-0" / "steps.jsonl").open("ab") as file:
        file.write(b"\xff{nonsense\n")

    rank = read_run(tmp_path).ranks[0]
    assert len(rank.steps) == 1
    assert rank.lost == ["steps.jsonl: 1 of 2 rows are damaged and were skipped"]


def test_rows_killed_at_any_moment_are_readable_up_to_there(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; sys.path.insert(0, sys.argv[2])\n"
        "from perfkit.run.records import Phases, Step; from perfkit.run.rank_writer import RankWriter\n"
        "writer = RankWriter(Path(sys.argv[1]), 0)\n"
        "for n in range(500):\n"
        "    writer.append_steps([Step(step=n, start_ns=n, wall_ns=1, phases_ns=Phases())])\n"
        "os._exit(9)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path), os.getcwd()], check=False)

    assert done.returncode == 9
    assert len(read_run(tmp_path).ranks[0].steps) == 500


def test_a_folder_of_another_launch_is_kept_and_a_number_is_added(tmp_path: Path) -> None:
    folder = tmp_path / "x"
    folder.mkdir()
    write_record(folder, run_record("first"))

    assert claim_folder(folder, "first", overwrite=False) == folder
    assert claim_folder(folder, "second", overwrite=False) == tmp_path / "x-2"


def test_overwrite_removes_the_old_run_and_nothing_else(tmp_path: Path) -> None:
    write_record(tmp_path, run_record("first"))
    RankWriter(tmp_path, 0).write(rank_record("first"))
    (tmp_path / "notes.txt").write_text("mine")

    assert claim_folder(tmp_path, "second", overwrite=True) == tmp_path
    assert {path.name for path in tmp_path.iterdir()} == {"notes.txt", ".launch"}


def test_a_damaged_run_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "run.json").write_bytes(b"{")

    assert claim_folder(tmp_path / "x", "new", overwrite=False).name == "x-2"


def test_recording_into_a_file_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")

    with pytest.raises(UsageError, match="is a file: choose another path"):
        claim_folder(tmp_path / "x", "a", overwrite=False)


def test_a_failed_write_leaves_the_old_file_and_no_remains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(b"old")

    def full_disk(*names: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full_disk)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"new")

    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("run.json", b"old")]


def test_a_newer_schema_is_refused_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"schema": 99}')

    with pytest.raises(RunError, match="schema 99, this perfkit reads up to 2"):
        read_run(tmp_path)


@pytest.mark.parametrize("content", ["folder", "nothing"])
def test_a_folder_without_a_run_is_refused(tmp_path: Path, content: str) -> None:
    if content == "folder":
        (tmp_path / "pictures").mkdir()

    with pytest.raises(RunError, match="holds no run"):
        read_run(tmp_path)


def test_a_run_without_a_single_record_is_called_empty(tmp_path: Path) -> None:
    write_record(tmp_path, run_record())
    RankWriter(tmp_path, 0).write(rank_record())

    with pytest.raises(RunError, match="empty run: no step was recorded"):
        read_run(tmp_path)


def test_ranks_that_left_nothing_are_named(tmp_path: Path) -> None:
    write_record(tmp_path, run_record(world_size=3))
    write_rows(tmp_path, 1, row(0))

    assert read_run(tmp_path).missing_ranks == [0, 2]


def test_ranges_come_back_as_they_were_written_and_without_pickle(tmp_path: Path) -> None:
    hist = tuple([0] * 10 + [3] + [0] * 53)
    rows = (
        RangeRow(
            name="é <b>",
            category="",
            domain="d",
            thread="t",
            count=3,
            total_ns=9,
            self_ns=8,
            min_ns=1,
            max_ns=4,
            hist=hist,
        ),
    )
    write_rows(tmp_path, 0, row(0))
    RankWriter(tmp_path, 0).write_ranges(rows)

    assert read_run(tmp_path).ranks[0].ranges == rows


def test_a_pickle_in_place_of_ranges_is_not_opened(tmp_path: Path) -> None:
    import pickle

    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (os.mkdir, (str(tmp_path / "exploded"),))

    write_rows(tmp_path, 0, row(0))
    (tmp_path / "rank-0" / "ranges.npz").write_bytes(pickle.dumps(Bomb()))
    rank = read_run(tmp_path).ranks[0]

    assert rank.ranges == ()
    assert "ranges.npz: damaged" in rank.lost[0]
    assert not (tmp_path / "exploded").exists()


def test_amounts_are_added_the_highest_memory_is_kept_and_all_else_is_the_first_rows() -> None:
    first = row(4, 30, samples=8, memory_bytes=5, rss_bytes=9, loss=0.5, gc_ns=3)
    second = row(
        5, 10, samples=8, memory_bytes=7, rss_bytes=2, loss=0.25, recompiles=1, device_phases_ns=Phases(data=2)
    )

    joined = merged(first, second)

    assert (joined.step, joined.steps, joined.start_ns, joined.wall_ns, joined.samples) == (4, 2, 400, 40, 16)
    assert (joined.memory_bytes, joined.rss_bytes, joined.loss) == (7, 9, 0.5)
    assert (joined.gc_ns, joined.recompiles, joined.tokens) == (3, 1, None)
    assert (joined.phases_ns, joined.device_phases_ns) == (Phases(forward=40), Phases(data=2))


def span(name: str, start_ns: int, end_ns: int | None = 9, thread: str = "MainThread") -> RangeSpan:
    return RangeSpan(
        name=name, category="c", domain="perfkit", thread=thread, start_ns=start_ns, end_ns=end_ns, depth=1
    )


@pytest.mark.parametrize("rows", [[], [span("a", 1), span("b", 2, None, "worker"), span("a", 3)]])
def test_what_a_window_kept_of_ranges_is_read_as_it_was_written(tmp_path: Path, rows: list[RangeSpan]) -> None:
    write_spans(tmp_path / "ranges-3.npz", rows, 7)

    found = RankFolder(tmp_path, 0).spans(3)
    assert found is not None
    assert (list(found.rows), found.dropped) == (rows, 7)
    assert RankFolder(tmp_path, 0).spans(4) is None


def test_files_of_a_window_are_next_to_its_trace(tmp_path: Path) -> None:
    path = tmp_path / trace_name(12)

    assert stacks_path(path).name == "stacks-12.pt.trace.json.gz"
    assert lines_path(stacks_path(path)).name == "stacks-12.lines.npz"
    assert spans_path(path).name == "ranges-12.npz"


CODE = UserCode(file="/x/train.py", frame_file="train.py", name="step", function="Net.step", line=3)


def write_lines(folder: Path, code: list[int] | None = None) -> Path:
    stacks = folder / "stacks-0.pt.trace.json.gz"
    times = LineTimes(
        thread=77,
        codes=(CODE,),
        files={"train.py": "/x/train.py"},
        time_ns=[10, 20, 30],
        code=[0, 0, 0] if code is None else code,
        line=[4, 5, 4],
        depth=[1, 1, 0],
        complete=False,
    )
    write_line_times(lines_path(stacks), times)
    return stacks


def test_times_of_lines_are_read_as_they_were_written(tmp_path: Path) -> None:
    lost: list[str] = []
    found = read_line_times(write_lines(tmp_path), lost)

    assert found is not None
    assert (found.thread, found.codes, found.files) == (77, (CODE,), {"train.py": "/x/train.py"})
    assert (found.time_ns.tolist(), found.code.tolist(), found.line.tolist()) == ([10, 20, 30], [0, 0, 0], [4, 5, 4])
    assert (found.depth.tolist(), found.complete) == ([1, 1, 0], False)
    assert read_line_times(tmp_path / "stacks-1.pt.trace.json.gz", lost) is None
    assert lost == []


@pytest.mark.parametrize("code", [[0, 1, 0], [0, -1, 0], [0, 0]])
def test_inconsistent_times_of_lines_are_skipped_and_reported(tmp_path: Path, code: list[int]) -> None:
    lost: list[str] = []

    assert read_line_times(write_lines(tmp_path, code), lost) is None
    assert "stacks-0.lines.npz: damaged" in lost[0]


@pytest.mark.parametrize("keep", [0, 10, 200])
def test_a_truncated_array_file_is_skipped_and_reported(tmp_path: Path, keep: int) -> None:
    write_spans(tmp_path / "ranges-0.npz", [span("a", 1)], 0)
    stacks = write_lines(tmp_path)
    for path in tmp_path.iterdir():
        path.write_bytes(path.read_bytes()[:keep])

    rank, lost = RankFolder(tmp_path, 0), []
    assert rank.spans(0) is None
    assert read_line_times(stacks, lost) is None
    assert "ranges-0.npz: damaged" in rank.lost[0]
    assert "stacks-0.lines.npz: damaged" in lost[0]


def test_pickles_in_an_array_file_are_not_loaded(tmp_path: Path) -> None:
    import numpy as np

    np.savez(tmp_path / "ranges-0.npz", range=np.array([{"a": 1}], dtype=object))
    rank = RankFolder(tmp_path, 0)

    assert rank.spans(0) is None
    assert "ranges-0.npz: damaged" in rank.lost[0]
