"""A program against itself under other changes: in one process, in turns, or in whole runs; failures are results."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from perfkit.trial import comparing
from perfkit.trial.catalog import parse_changes
from perfkit.trial.comparing import Comparer
from perfkit.trial.reruns import RerunEnding, RerunPlan, RerunResult, TriedProgram
from perfkit.trial.shift import Blocks, shift_of
from perfkit.trial.turns import Turns

PROGRAM = TriedProgram("train.py")


class FakeProgram:
    """Stands for all reruns: what each was to do, how long its steps are, and how it ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.plans: list[RerunPlan] = []
        self.step_ns = 10_000_000
        #: Steps of the whole program.
        self.total = 10_000
        #: How a program with these changes ends alone, and how one of two ends that run at once.
        self.endings: dict[tuple[str, ...], RerunEnding] = {}
        self.together: RerunEnding = "stopped"
        self.running = 0

    def start(self, program: TriedProgram, plan: RerunPlan, workspace: Path) -> FakeRerun:
        assert (program, workspace) == (PROGRAM, self.folder)
        self.plans.append(plan)
        return FakeRerun(self, plan, self.folder / f"run-{len(self.plans)}")

    def run_in_turns(self, children: Sequence[object], **options: Any) -> Turns:
        assert self.running == 2
        options["progress"](1.0)
        return Turns(([], []), 0)


class FakeRerun:
    def __init__(self, program: FakeProgram, plan: RerunPlan, folder: Path) -> None:
        self.program, self.plan, self.folder = program, plan, folder
        self.process = subprocess.Popen([sys.executable, "-c", ""])
        self.ended = ""
        self.with_other = False

    def __enter__(self) -> FakeRerun:
        self.program.running += 1
        return self

    def __exit__(self, *error: object) -> None:
        self.program.running -= 1
        self.process.wait()

    def end(self, ending: RerunEnding = "stopped") -> None:
        self.ended = ending

    def wait(self, limit_s: float) -> RerunResult:
        return self.result() if limit_s > 0 else self.result("timed-out")

    def result(self, ending: RerunEnding | None = None) -> RerunResult:
        program = self.program
        steps = min(self.plan.steps, program.total)
        ending = ending or program.endings.get(self.plan.changes)
        if ending is None and program.running == 2 and program.together != "stopped":
            ending = program.together
        if self.ended == "timed-out":
            ending = "timed-out"
        (self.folder / "rank-0").mkdir(parents=True, exist_ok=True)
        (self.folder / "rank-0" / "rank.json").write_text(
            '{"rank": 0, "launch_id": "", "host": "", "pid": 1, "start_ns": 0}'
        )
        wall_ns = program.step_ns // (2 if "threads=1" in self.plan.changes else 1)
        with (self.folder / "rank-0" / "steps.jsonl").open("w") as file:
            for step in range(steps):
                is_on = self.plan.switch is not None and self.plan.switch.is_on(step)
                row = {"step": step, "start_ns": 0, "wall_ns": wall_ns - 1_000_000 * is_on, "phases_ns": {}}
                print(json.dumps(row), file=file)
        return RerunResult(
            ending=ending or ("stopped" if steps == self.plan.steps else "ended"),
            message="",
            folder=self.folder,
            steps=steps,
            losses=(),
            applied=(),
            peak_bytes=None,
            peak_device_bytes=None,
        )


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeProgram:
    program = FakeProgram(tmp_path)
    monkeypatch.setattr(comparing, "start_rerun", program.start)
    monkeypatch.setattr(comparing, "run_in_turns", program.run_in_turns)
    monkeypatch.setattr(comparing, "blocks_of_turns", lambda folders, turns: Blocks([10e6] * 20, [9e6] * 20))
    return program


def comparer(fake: FakeProgram, **options: Any) -> Comparer:
    return Comparer(PROGRAM, fake.folder, steps=40, progress=options.pop("progress", lambda what, s: None), **options)


def test_what_can_be_switched_is_compared_in_one_process_with_the_rest_applied_to_all_of_it(fake: FakeProgram) -> None:
    got = comparer(fake, step_s=0.01).compare(
        parse_changes(["workers=2"]), parse_changes(["workers=2", "gradients-to-none", "threads=1"]), limit_s=60
    )

    (plan,) = fake.plans
    assert plan.changes == ("workers=2",)
    assert plan.switch is not None
    assert plan.switch.changes == ("gradients-to-none", "threads=1")
    assert plan.steps == plan.switch.steps
    assert got.switched
    assert got.before is got.after
    assert got.step_ns == (10e6, 9e6)
    shift = shift_of([got.blocks])
    assert shift is not None
    assert shift.saved == pytest.approx(0.1)


def test_a_change_that_is_left_out_is_compared_the_other_way_round(fake: FakeProgram) -> None:
    got = comparer(fake).compare(parse_changes(["gradients-to-none"]), [], limit_s=60)

    assert got.switched
    assert got.step_ns == (9e6, 10e6)


@pytest.mark.parametrize(
    ("before", "after"),
    [([], []), ([], ["workers=2"]), ([], ["gradients-to-none", "workers=2"]), (["threads=1"], ["threads=2"])],
)
def test_equal_programs_and_what_cannot_be_switched_run_in_turns(
    fake: FakeProgram, before: list[str], after: list[str]
) -> None:
    heard: list[tuple[str, float]] = []
    got = comparer(fake, step_s=0.1, progress=lambda what, s: heard.append((what, s))).compare(
        parse_changes(before), parse_changes(after), limit_s=60
    )

    assert not got.switched
    assert [plan.changes for plan in fake.plans] == [tuple(before), tuple(after)]
    assert [plan.switch for plan in fake.plans] == [None, None]
    assert got.step_ns == (10e6, 9e6)
    assert heard[0][0].endswith("in turns")


def test_the_program_that_starts_first_alternates_between_comparisons_of_the_same_two(
    fake: FakeProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    tested = comparer(fake, step_s=0.1)
    # Whatever they are: the one that starts second takes longer.
    monkeypatch.setattr(comparing, "blocks_of_turns", lambda folders, turns: Blocks([5e6] * 20, [6e6] * 20))
    monkeypatch.setattr(comparing, "extra_start_ns", lambda folders, turns: 1000)

    got = [tested.compare([], parse_changes(["workers=2"]), limit_s=60) for _ in range(3)]
    tested.compare([], parse_changes(["workers=4"]), limit_s=60)

    started = [plan.changes for plan in fake.plans]
    assert started == [(), ("workers=2",), ("workers=2",), (), (), ("workers=2",), (), ("workers=4",)]
    assert [one.step_ns for one in got] == [(5e6, 6e6), (6e6, 5e6), (5e6, 6e6)]
    assert [one.start_ns for one in got] == [1000, -1000, 1000]
    assert [one.after.folder.name for one in got] == ["run-2", "run-3", "run-6"]


def test_a_switch_is_not_used_where_turns_are_asked_for(fake: FakeProgram) -> None:
    got = comparer(fake, step_s=0.1).compare([], parse_changes(["threads=1"]), limit_s=60, in_turns=True)

    assert not got.switched


def test_short_steps_are_compared_for_as_long_as_twenty_turns_take(fake: FakeProgram) -> None:
    tested = comparer(fake, step_s=0.005)
    tested.compare([], [], limit_s=60)
    fake.step_ns = 5_000_000
    tested.compare([], parse_changes(["threads=1"]), limit_s=60)

    in_turns, _, switched = fake.plans
    assert in_turns.steps >= 4 / 0.01
    assert switched.switch is not None
    assert switched.switch.block_steps * 0.01 >= 0.1
    assert switched.switch.blocks >= 40


def test_a_comparison_that_shows_too_little_is_made_again_with_both_programs_running_equally_long(
    fake: FakeProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [Blocks([4e6], [1e6]), Blocks([4e6] * 20, [1e6] * 20)]
    monkeypatch.setattr(comparing, "blocks_of_turns", lambda folders, turns: found.pop(0))

    got = comparer(fake).compare([], [], limit_s=60)

    assert [plan.steps for plan in fake.plans] == [40, 40, 1005, 4005]
    assert len(got.blocks.first) == 20


def test_a_program_that_is_over_early_gets_blocks_that_fit_into_it(fake: FakeProgram) -> None:
    fake.total = 70
    got = comparer(fake, step_s=0.01).compare([], parse_changes(["threads=1"]), limit_s=60)

    assert [plan.switch.block_steps for plan in fake.plans if plan.switch] == [10, 3]
    assert got.before.ending == "ended"
    assert len(got.blocks.first) >= 8


@pytest.mark.parametrize("ending", ["failed", "refused", "timed-out"])
def test_a_program_that_fails_is_a_result_and_is_not_run_again(fake: FakeProgram, ending: RerunEnding) -> None:
    fake.endings["workers=2",] = ending
    got = comparer(fake, step_s=0.1).compare([], parse_changes(["workers=2"]), limit_s=60)

    assert (got.before.ending, got.after.ending) == ("stopped", ending)
    assert not got.completed
    assert len(fake.plans) == 2


def test_where_the_memory_holds_one_program_only_whole_runs_are_compared_from_then_on(fake: FakeProgram) -> None:
    fake.together = "out-of-memory"
    tested = comparer(fake, step_s=0.1)
    got = tested.compare([], parse_changes(["workers=2"]), limit_s=60)
    again = tested.compare([], [], limit_s=60)

    assert [plan.changes for plan in fake.plans[:6]] == [(), ("workers=2",), (), ("workers=2",), ("workers=2",), ()]
    assert len(fake.plans) == 6 + 4
    assert got.completed
    assert len(got.blocks.first) >= 16
    assert got.step_ns == (10e6, 10e6)
    assert again.completed


def test_a_change_that_needs_more_memory_than_there_is_ends_out_of_memory_also_alone(fake: FakeProgram) -> None:
    fake.endings["workers=2",] = "out-of-memory"
    tested = comparer(fake, step_s=0.1)
    got = tested.compare([], parse_changes(["workers=2"]), limit_s=60)
    tested.compare([], [], limit_s=60)

    assert (got.before.ending, got.after.ending) == ("stopped", "out-of-memory")
    # Others still run in turns.
    assert len(fake.plans) == 2 + 2 + 2


def test_whole_runs_are_compared_where_programs_cannot_be_stopped(
    fake: FakeProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparing, "can_stop_programs", lambda: False)
    comparer(fake, step_s=0.1).compare([], [], limit_s=60)

    assert len(fake.plans) == 4


def test_programs_are_ended_when_their_time_is_over(fake: FakeProgram) -> None:
    got = comparer(fake, step_s=0.1).compare([], [], limit_s=0)

    assert {got.before.ending, got.after.ending} == {"timed-out"}


COLLECTING = """
import gc, time, torch
weight = torch.ones(4, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
kept = [[number] for number in range(100_000)]
for _ in range(100_000):
    time.sleep(0.005)
    gc.collect()
    optimizer.zero_grad()
    weight.sum().backward()
    optimizer.step()
"""


@pytest.mark.alone  # beside other work the turns have too few steps
@pytest.mark.slow
@pytest.mark.parametrize("in_turns", [False, True])
def test_a_real_saving_is_measured_in_one_process_and_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_turns: bool
) -> None:
    user, workspace = tmp_path / "user", tmp_path / "workspace"
    user.mkdir()
    workspace.mkdir()
    (user / "train.py").write_text(COLLECTING)
    monkeypatch.chdir(user)
    tested = Comparer(PROGRAM, workspace, steps=40, progress=lambda what, s: None)

    got = tested.compare([], parse_changes(["no-collections"]), limit_s=200, in_turns=in_turns)

    shift = shift_of([got.blocks])
    assert (got.switched, got.before.ending, got.after.ending) == (not in_turns, "stopped", "stopped")
    assert shift is not None
    assert shift.low > 0.1
    assert got.after.applied[0].count > 10
