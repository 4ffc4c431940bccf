"""Rows of a steps.jsonl that is written and replaced are each read once, whatever happens between two reads."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from perfkit.run import step_file
from perfkit.run.new_rows import NewRows
from perfkit.run.records import Phases, Step
from perfkit.run.step_file import StepFile, read_steps

_ENCODER = msgspec.json.Encoder()


def rows(start: int, end: int) -> list[Step]:
    return [
        Step(step=step, start_ns=step * 100, wall_ns=10, phases_ns=Phases(forward=10)) for step in range(start, end)
    ]


def steps_in(new: NewRows) -> list[int]:
    return [row.step for block in new.read() for row in block]


def test_a_file_that_is_replaced_twice_between_two_reads_is_another_file_though_its_inode_is_the_same(
    tmp_path: Path,
) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_bytes(_ENCODER.encode_lines(rows(0, 1000)))
    new = NewRows(path)
    assert steps_in(new) == list(range(1000))

    # As after two replacements: the same inode, another content, and longer than what was read.
    inode = path.stat().st_ino
    shorter = [msgspec.structs.replace(rows(0, 1)[0], steps=500, wall_ns=5_000), *rows(500, 3000)]
    path.write_bytes(_ENCODER.encode_lines(shorter))
    assert path.stat().st_ino == inode

    assert steps_in(new) == list(range(1000, 3000))
    assert new.damaged == 0


@pytest.mark.parametrize("every", [1, 7, 30, 200])
def test_a_reader_that_comes_as_seldom_as_it_likes_sees_every_step_that_is_not_merged_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    monkeypatch.setattr(step_file, "NEWEST_ROWS", 200)
    monkeypatch.setattr(step_file, "MERGED_ROWS", 60)
    file, new = StepFile(tmp_path / "steps.jsonl"), NewRows(tmp_path / "steps.jsonl")
    seen: list[int] = []
    for turn in range(400):
        file.append(rows(10 * turn, 10 * turn + 10))
        if turn % every == every - 1:
            seen += steps_in(new)
    seen += steps_in(new)
    file.close()

    assert new.damaged == 0
    assert seen == sorted(set(seen))
    if every < 20:  # otherwise rows were merged before they were read
        assert seen == list(range(4000))


def test_nothing_read_before_is_decoded_again_when_a_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_bytes(_ENCODER.encode_lines(rows(0, 20_000)))
    new = NewRows(path)
    assert len(steps_in(new)) == 20_000
    path.unlink()
    path.write_bytes(_ENCODER.encode_lines([*rows(0, 20_100)]))

    with path.open("rb") as file:
        new._inode = -1
        assert path.stat().st_size - new._start(file) < 200_000  # of 1.6 MB
    assert steps_in(new) == list(range(20_000, 20_100))


def test_readers_in_other_processes_see_whole_rows_while_another_writes_and_merges(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from perfkit.run import step_file; from perfkit.run.records import Phases, Step\n"
        "step_file.NEWEST_ROWS, step_file.MERGED_ROWS = 100, 60\n"
        "file = step_file.StepFile(Path(sys.argv[1]))\n"
        "for n in range(40_000):\n"
        "    file.append([Step(step=n, start_ns=n * 100, wall_ns=10, phases_ns=Phases(forward=10))])\n"
    )
    path = tmp_path / "steps.jsonl"
    writer = subprocess.Popen([sys.executable, "-c", code, str(path)], env={**os.environ, "PYTHONPATH": os.getcwd()})
    new, last, reads = NewRows(path, most_bytes=10_000), -1, 0
    while writer.poll() is None or reads == 0:
        if not path.exists():
            time.sleep(0.01)
            continue
        for step in steps_in(new):
            assert step > last
            last = step
        with path.open("rb") as file:
            found = read_steps(file)
        reads += 1
        assert found.damaged == 0
        # A reader sees one file or the other: all steps up to some step, none of them twice.
        ends = [row.step + row.steps for row in found.rows]
        assert [row.step for row in found.rows] == [0, *ends[:-1]][: len(ends)]

    steps_in(new)
    assert writer.returncode == 0
    assert (new.last_step, new.damaged) == (39_999, 0)
