"""The pytest helper that holds a step to its history, in real pytest runs of a small project."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from perfkit.errors import UsageError
from perfkit.pytest_plugin import step_ratio
from perfkit.pytest_plugin.step_history import judge_step, parse_slowdown
from perfkit.pytest_plugin.step_ratio import StepRatio, machine_name, measure_ratio

TEST = """
import os
import pytest

def step():
    return sum(n * n for n in range(int(40_000 * float(os.environ.get("TIMES", 1)))))

@pytest.mark.step_history(max_slowdown="20%")
def test_step(step_history):
    step_history.measure(step)
"""


#: Shorter than for users, as here a step that takes ten times as long is looked for.
SHORT = """
from perfkit.pytest_plugin import step_ratio
step_ratio._ROUNDS, step_ratio._ROUND_S = 11, 0.004
"""
PLUGINS = ("--strict-markers", "-p", "no:cacheprovider", "-p", "perfkit.pytest_plugin")


def run_pytest(folder: Path, *arguments: str, **environment: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", *PLUGINS, *arguments],
        cwd=folder,
        env={
            **os.environ,
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "COLUMNS": "300",
            "OMP_NUM_THREADS": "1",
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "test_step.py").write_text(TEST)
    (tmp_path / "conftest.py").write_text(SHORT)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def test_a_step_is_recorded_passes_as_it_was_and_fails_when_it_becomes_slower(project: Path) -> None:
    code, text = run_pytest(project)
    assert (code, "not compared: perfkit-steps.json has nothing of" in text) == (0, True)

    code, text = run_pytest(project, "--perfkit-update-steps")
    assert (code, "tests recorded: 1" in text) == (0, True)
    stored = json.loads((project / "perfkit-steps.json").read_text())
    assert list(stored["tests"]) == ["test_step.py::test_step"]

    assert run_pytest(project)[0] == 0
    # Ten times: two sessions on a busy machine may differ by a factor of two.
    code, text = run_pytest(project, TIMES="10")
    assert code == 1
    assert re.search(
        r"the step is \d+% slower than perfkit-steps.json has it \(at least \d+%\), and 20% are allowed", text
    )
    assert "pytest --perfkit-update-steps" in text


def test_another_level_replaces_the_sessions_before_it_and_the_same_level_is_added(project: Path) -> None:
    machines = {}
    for times in ("1", "10"):
        assert run_pytest(project, "--perfkit-update-steps", TIMES=times)[0] == 0
        machines[times] = json.loads((project / "perfkit-steps.json").read_text())["tests"]["test_step.py::test_step"]

    (first,), (second,) = machines["1"].values(), machines["10"].values()
    assert len(second) == 1
    assert second[0] > 2 * first[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not a file of steps that this version of perfkit can read"),
        ('{"version": 2, "tests": {}}', "its version is 2, not 1"),
        ('{"version": 1, "tests": {"a": {"m": [0]}}}', "are no numbers above 0"),
    ],
)
def test_a_damaged_file_fails_the_test_and_is_not_overwritten(project: Path, text: str, words: str) -> None:
    (project / "perfkit-steps.json").write_text(text)

    code, printed = run_pytest(project, "--perfkit-update-steps")

    assert (code, words in printed) == (1, True)
    assert (project / "perfkit-steps.json").read_text() == text


def test_wrong_markers_and_a_test_that_measures_nothing_are_named(project: Path) -> None:
    (project / "test_step.py").write_text(
        "import pytest\n"
        "@pytest.mark.step_history(max_slowdown='fast')\ndef test_wrong(step_history): pass\n"
        "@pytest.mark.step_history\ndef test_nothing(step_history): pass\n"
        "@pytest.mark.step_history(3, 4)\ndef test_two(step_history): pass\n"
    )
    code, text = run_pytest(project)

    assert code == 1
    assert "max_slowdown must be a share above 0, as \"5%\" or 0.05, got 'fast'" in text
    assert "nothing was measured: call step_history.measure(step)" in text
    assert "@pytest.mark.step_history: parse_slowdown() takes" in text


def ratio(middle: float, spread: float) -> StepRatio:
    return StepRatio(middle, middle * (1 - spread), middle * (1 + spread), 10**6, 31)


def test_a_slowdown_fails_only_beyond_what_measurements_vary_by() -> None:
    steady = [1.0, 1.01, 0.99]

    assert judge_step(ratio(1.2, 0.01), steady, 0.1).failed
    assert not judge_step(ratio(1.02, 0.01), steady, 0.1).unclear
    noisy = judge_step(ratio(1.2, 0.15), steady, 0.1)
    assert (noisy.failed, noisy.unclear) == (False, True)
    assert not judge_step(ratio(1.2, 0.01), [0.85, 1.0, 1.2], 0.1).failed
    # One session does not show how much sessions differ.
    assert not judge_step(ratio(1.13, 0.0), [1.0], 0.1).failed
    assert not judge_step(ratio(0.5, 0.01), steady, 0.1).unclear


class BusyMachine:
    """A clock of a machine whose other load slows all work down, by more in some seconds than in others."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    monotonic = perf_counter

    def work(self, milliseconds: float) -> None:
        self.now += milliseconds / 1e3 * (1 + 0.5 * (int(self.now) % 3))


@pytest.mark.parametrize("milliseconds", [0.4, 4.0, 30.0, 60.0])
def test_the_ratio_of_a_step_stays_on_a_busy_machine(monkeypatch: pytest.MonkeyPatch, milliseconds: float) -> None:
    machine = BusyMachine()
    monkeypatch.setattr(step_ratio, "time", machine)
    monkeypatch.setattr(step_ratio, "_fixed_work", lambda: lambda: machine.work(2.0))

    measured = measure_ratio(lambda: machine.work(milliseconds))

    assert measured.ratio == pytest.approx(milliseconds / 2.0)
    assert measured.low <= measured.ratio <= measured.high
    assert measured.rounds >= 9


def test_a_step_is_measured_against_a_fixed_work_of_this_machine() -> None:
    measured = measure_ratio(lambda: sum(i * i for i in range(30_000)))

    assert 0 < measured.low <= measured.ratio <= measured.high
    assert measured.step_ns > 0
    assert "cores" in machine_name()


@pytest.mark.parametrize(("given", "share"), [("5%", 0.05), (" 12.5 % ", 0.125), (0.2, 0.2)])
def test_a_bound_is_a_percentage_or_a_share(given: object, share: float) -> None:
    assert parse_slowdown(given) == pytest.approx(share)


@pytest.mark.parametrize("given", ["5", "", "-5%", 0, -1, None, float("nan"), True])
def test_another_bound_is_a_mistake(given: object) -> None:
    with pytest.raises(UsageError, match="must be a share above 0"):
        parse_slowdown(given)
