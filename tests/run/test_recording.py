"""Rows that wait for their device times: in order, never lost, never waited for."""

from __future__ import annotations

from pathlib import Path

from perfkit.run.reading import read_run
from perfkit.run.recording import Parts, Recording
from perfkit.run.records import Phases, Step


def row(step: int) -> Step:
    return Step(step=step, start_ns=step, wall_ns=1, phases_ns=Phases())


def recording(folder: Path) -> Recording:
    return Recording(folder, "launch", lambda: Parts(facts={}))


def steps(folder: Path) -> list[tuple[int, int | None]]:
    """(step, device time of the forward) of each row on disk."""
    rows = read_run(folder).ranks[0].steps
    return [(r.step, r.device_phases_ns.forward if r.device_phases_ns else None) for r in rows]


def test_a_row_is_written_once_its_device_times_are_there(tmp_path: Path) -> None:
    record = recording(tmp_path)
    for step in range(3):
        record.add(row(step), awaits_device=True)
    record.settle(0, Phases(forward=7))
    record.settle(1, None)
    record.finish("finished")

    assert steps(tmp_path) == [(0, 7), (1, None), (2, None)]


def test_a_row_is_held_for_64_steps_and_then_written_without(tmp_path: Path) -> None:
    record = recording(tmp_path)
    given_up = [record.add(row(step), awaits_device=True) for step in range(66)]
    record.flush()

    assert steps(tmp_path) == [(0, None), (1, None)]
    assert given_up[-3:] == [None, 1, 2]
    record.finish("finished")
    assert [step for step, _ in steps(tmp_path)] == list(range(66))
