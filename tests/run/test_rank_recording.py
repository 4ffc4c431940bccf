"""Rows that wait for their device times: in order, never lost, never waited for."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from perfkit import _clock
from perfkit.run.folder_claim import launch_id
from perfkit.run.rank_recording import Parts, RankRecording
from perfkit.run.reading import read_run
from perfkit.run.records import Phases, Step


def row(step: int) -> Step:
    return Step(step=step, start_ns=step, wall_ns=1, phases_ns=Phases())


def recording(folder: Path) -> RankRecording:
    return RankRecording(folder, "launch", lambda: Parts(facts={}))


def steps(folder: Path) -> list[tuple[int, int | None]]:
    """(step, device time of the forward) of each row on disk."""
    rows = read_run(folder).ranks[0].steps
    return [(r.step, r.device_phases_ns.forward if r.device_phases_ns else None) for r in rows]


def test_a_row_is_written_once_its_device_times_are_there(tmp_path: Path) -> None:
    record = recording(tmp_path)
    record.add([row(step) for step in range(3)], await_device=True)
    record.settle(0, Phases(forward=7))
    record.settle(1, None)
    record.finish("finished")

    assert steps(tmp_path) == [(0, 7), (1, None), (2, None)]


def test_clock_pairs_of_a_long_run_are_few_and_spread_over_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readings = itertools.count()
    monkeypatch.setattr(_clock, "clock_pair", lambda: (next(readings), 0))
    record = recording(tmp_path)
    for _ in range(1000):
        record.pair_clocks()
    record.add([row(0)])
    record.finish("finished")

    rank = read_run(tmp_path).ranks[0].rank
    assert rank is not None
    times = [pair.perf_ns for pair in rank.clock_pairs]
    assert 30 < len(times) <= 65
    assert (times[0], times[-1]) == (0, 1000)
    assert max(later - earlier for earlier, later in itertools.pairwise(times)) <= 32


def test_a_row_is_held_for_64_steps_and_then_written_without(tmp_path: Path) -> None:
    record = recording(tmp_path)
    given_up = []
    for step in range(66):
        record.add([row(step)], await_device=True)
        given_up.append(record.write_due())
    record.flush()

    assert steps(tmp_path) == [(0, None), (1, None)]
    assert given_up[-3:] == [None, 1, 2]
    record.finish("finished")
    assert [step for step, _ in steps(tmp_path)] == list(range(66))


class Loss:
    """A loss that is there from the moment somebody waits."""

    def __init__(self, value: float, *, there: bool) -> None:
        self.value, self.there = value, there

    def read(self, *, wait: bool) -> float | None:
        return self.value if self.there or wait else None


def test_a_loss_on_a_device_is_read_when_its_row_is_written_and_only_the_last_rows_wait(tmp_path: Path) -> None:
    record = recording(tmp_path)
    for step, there in ((0, True), (1, False), (2, False)):
        record.late_losses[step] = Loss(step + 0.5, there=there)
    record.add([row(0), row(1)])
    record.flush()
    assert list(record.late_losses) == [2]
    record.add([row(2), row(3)], await_device=True)
    record.finish("finished")

    assert [each.loss for each in read_run(tmp_path).ranks[0].steps] == [0.5, None, 2.5, None]


def launched(monkeypatch: pytest.MonkeyPatch, **env: str) -> str:
    """The launch id under a launcher that sets these variables; the count of runs of this process left out."""
    with monkeypatch.context() as patch:
        patch.setattr("perfkit.run.folder_claim._runs_of_this_process", iter([0]))
        for name in ("PERFKIT_LAUNCH_ID", "TORCHELASTIC_RUN_ID", "SLURM_STEP_ID", "LOCAL_RANK", "NODE_RANK"):
            patch.delenv(name, raising=False)
        for name, value in env.items():
            patch.setenv(name, value)
        return launch_id()


def test_ranks_that_lightning_launches_share_one_launch_and_the_next_launch_has_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    env = {"WORLD_SIZE": "2", "NODE_RANK": "0", "MASTER_PORT": "29500"}
    monkeypatch.setattr("os.getpid", lambda: 100)
    monkeypatch.setattr("os.getppid", lambda: 7)
    first = launched(monkeypatch, LOCAL_RANK="0", **env)
    monkeypatch.setattr("os.getpid", lambda: 101)
    monkeypatch.setattr("os.getppid", lambda: 100)
    second = launched(monkeypatch, LOCAL_RANK="1", **env)
    monkeypatch.setattr("os.getpid", lambda: 200)

    assert first == second
    assert launched(monkeypatch, LOCAL_RANK="0", **env) != first


def test_a_launch_can_be_named_and_srun_names_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = {"WORLD_SIZE": "2", "SLURM_JOB_ID": "88", "SLURM_STEP_ID": "3"}

    assert launched(monkeypatch, **slurm) == "slurm-88-3"
    assert launched(monkeypatch, PERFKIT_LAUNCH_ID="mine/1", **slurm) == "mine-1"
    assert launched(monkeypatch) != launched(monkeypatch)
