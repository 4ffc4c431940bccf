"""The fixture ``step_history`` and its file: a training step that must not become slower than it was.

What is compared is the ratio of `perfkit.pytest_plugin.step_ratio`, with the ratios that the file has for this test on
this kind of machine: one for each session that recorded some. A test fails only if the step is slower than the bound by
more than both vary: the rounds of this session, and the sessions in the file. Where they vary by more than the bound,
the test passes, and the summary says that it cannot tell.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from perfkit.errors import UsageError

if TYPE_CHECKING:
    from perfkit.pytest_plugin.step_ratio import StepRatio

UPDATE_STEPS = "--perfkit-update-steps"
INI_STEPS = "perfkit_steps_baseline"
PROPERTY = "perfkit_step"
_VERSION = 1
#: Sessions that the file keeps for each test and machine: enough to see how much they differ.
_SESSIONS = 10
#: By what share sessions differ at least: the same step differs by some percent between processes, by where its memory
#: lies alone. What fewer than three sessions show of it is chance: then by the second share.
_LEAST_BETWEEN, _FEW_BETWEEN = 0.02, 0.05
_FEW = 3
#: Measurements before a test fails: what was disturbed the first time is not the second time.
_TRIES = 3


class StepVerdict(NamedTuple):
    """How much slower the step is (a share) with the ends of what it can be; ``failed``, or why it cannot be told."""

    slowdown: float
    low: float
    high: float
    failed: bool
    unclear: bool


def parse_slowdown(max_slowdown: object = "10%") -> float:
    """The share of ``"5%"`` or ``0.05``.

    Raises:
        UsageError: it is something else.
    """
    share = -1.0
    if isinstance(max_slowdown, str) and (match := re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", max_slowdown)):
        share = float(match[1]) / 100
    elif isinstance(max_slowdown, int | float) and not isinstance(max_slowdown, bool):
        share = float(max_slowdown)
    if not (math.isfinite(share) and share > 0):
        raise UsageError(f'max_slowdown must be a share above 0, as "5%" or 0.05, got {max_slowdown!r}')
    return share


def _median(values: list[float]) -> float:
    """The middle value; of an even number of them the larger of both in the middle, which fails fewer tests."""
    return sorted(values)[len(values) // 2]


def judge_step(now: StepRatio, before: list[float], max_slowdown: float) -> StepVerdict:
    """Compare a session with those before (some)."""
    base = _median(before)
    least = _LEAST_BETWEEN if len(before) >= _FEW else _FEW_BETWEEN
    between = max(least, (max(before) - min(before)) / 2 / base)
    low, high = now.low / (base * (1 + between)) - 1, now.high / (base * (1 - min(between, 0.9))) - 1
    return StepVerdict(now.ratio / base - 1, low, high, low > max_slowdown, low <= max_slowdown < high)


class StepHistoryFixture:
    """Measures the step of one test; see `perfkit.pytest_plugin`."""

    def __init__(self, baseline: StepBaseline, node: Any, max_slowdown: float) -> None:
        self._baseline = baseline
        self._node = node
        self._max = max_slowdown
        #: The last measurement; None before `measure`.
        self.measured: StepRatio | None = None

    def measure(self, step: Callable[[], object]) -> StepRatio:
        """Run ``step`` some dozens of times, in 5 s at most, and fail the test if it became slower.

        ``step`` does one step of training, with a batch that is already there. It is compared with what the file has,
        unless this session records it.
        """
        __tracebackhide__ = True
        # Most test runs measure no step.
        from perfkit.pytest_plugin.step_ratio import machine_name, measure_ratio

        machine = machine_name()
        before = [] if self._baseline.updating else self._baseline.known().get(self._node.nodeid, {}).get(machine, [])
        verdict, now = None, measure_ratio(step)
        for _ in range(_TRIES - 1):
            verdict = judge_step(now, before, self._max) if before else None
            if verdict is None or not verdict.failed:
                break
            again = measure_ratio(step)
            now = min(now, again, key=lambda one: one.ratio)
        verdict = judge_step(now, before, self._max) if before else None
        self.measured = now
        row = {"machine": machine, "ratio": now.ratio, "note": self._note(verdict, machine)}
        self._node.user_properties.append((PROPERTY, row))
        if verdict is not None and verdict.failed:
            pytest.fail(
                f"the step is {verdict.slowdown:.0%} slower than {self._baseline.name} has it (at least "
                f"{verdict.low:.0%}), and {self._max:.0%} are allowed; it takes {now.step_ns / 1e6:.3g} ms here. "
                f"If that is intended, record it: pytest {UPDATE_STEPS}",
                pytrace=False,
            )
        return now

    def _note(self, verdict: StepVerdict | None, machine: str) -> str | None:
        """What the summary says of the test; None: nothing."""
        if self._baseline.updating:
            return None
        if verdict is None:
            return f"not compared: {self._baseline.name} has nothing of {machine}; record it: pytest {UPDATE_STEPS}"
        if verdict.unclear:
            return (
                f"cannot tell whether the step became slower by more than {self._max:.0%}: it differs by "
                f"{verdict.slowdown:+.0%}, and measurements vary from {verdict.low:+.0%} to {verdict.high:+.0%}"
            )
        return None


class StepBaseline:
    """The file of ratios by test and machine; under pytest-xdist the main process alone writes it."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self.name = str(config.getini(INI_STEPS))
        self._path = config.rootpath / self.name
        self.updating = bool(config.getoption(UPDATE_STEPS))
        self._known: dict[str, dict[str, list[float]]] | None = None
        self._found: dict[str, dict[str, Any]] = {}
        self._summary: list[str] = []

    def known(self) -> dict[str, dict[str, list[float]]]:
        """Ratios by test and machine; none if the file is missing.

        Raises:
            UsageError: the file cannot be read, or is not such a file.
        """
        if self._known is None:
            try:
                self._known = _parse(self._path.read_text(encoding="utf-8"))
            except FileNotFoundError:
                self._known = {}
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                raise UsageError(
                    f"{self.name} is not a file of steps that this version of perfkit can read: "
                    f"{type(error).__name__}: {error}. Repair or delete it; it is not overwritten."
                ) from None
        return self._known

    # -- pytest's hooks

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            for name, row in report.user_properties:
                if name == PROPERTY and isinstance(row, dict):
                    self._found[report.nodeid] = {**row, "passed": report.passed}

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(self._config, "workerinput") or not self._found:
            return
        self._summary += [f"{nodeid}: {row['note']}" for nodeid, row in self._found.items() if row["note"]]
        if self.updating:
            try:
                self._update()
            except (OSError, UsageError) as error:
                self._summary.append(f"{self.name} was not written: {error}")
                session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED

    def _update(self) -> None:
        from perfkit.run.atomic import write_atomically  # most test runs need nothing of perfkit.run

        tests = {nodeid: dict(machines) for nodeid, machines in self.known().items()}
        passed = {nodeid: row for nodeid, row in self._found.items() if row["passed"]}
        for nodeid, row in passed.items():
            machine, ratio = row["machine"], float(f"{row['ratio']:.5g}")
            before = tests.get(nodeid, {}).get(machine, [])
            # Another level is recorded because it is meant: the sessions before are of another step.
            same = before and abs(ratio / _median(before) - 1) <= 2 * _FEW_BETWEEN
            kept = [*before, ratio][-_SESSIONS:] if same else [ratio]
            tests.setdefault(nodeid, {})[machine] = kept
        text = json.dumps({"version": _VERSION, "tests": tests}, indent=1, sort_keys=True) + "\n"
        write_atomically(self._path, text.encode())
        self._summary.append(f"{self.name} written, tests recorded: {len(passed)}")

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self._summary:
            terminalreporter.section("perfkit: steps")
            for line in self._summary:
                terminalreporter.write_line(line)


def _parse(text: str) -> dict[str, dict[str, list[float]]]:
    """Read the file; anything unexpected is a ValueError, KeyError, TypeError or AttributeError."""
    data = json.loads(text)
    if data["version"] != _VERSION:
        raise ValueError(f"its version is {data['version']!r}, not {_VERSION}")
    known: dict[str, dict[str, list[float]]] = {}
    for nodeid, machines in data["tests"].items():
        for machine, ratios in machines.items():
            if not ratios or not all(type(one) in (int, float) and 0 < one < math.inf for one in ratios):
                raise ValueError(f"the ratios of {nodeid} are no numbers above 0")
            known.setdefault(nodeid, {})[machine] = [float(one) for one in ratios]
    return known
