"""The pytest plugin: tests that fail on host-device syncs, and on training steps that became slower.

    @pytest.mark.max_syncs(0)
    def test_step_never_waits(syncs):
        model = Net()
        syncs.mark_device(model)  # only if the test itself requests no cuda
        train_step(model, batch())

- ``@pytest.mark.max_syncs(n)``: the test's body runs under `perfkit.detect_syncs`; more than ``n`` syncs fail the test.
- ``@pytest.mark.max_syncs``, without a number: the test fails on syncs that the baseline file (``perfkit-syncs.json``
  in rootdir; ini option ``perfkit_syncs_baseline``) does not list for it. ``pytest --perfkit-update-syncs`` records the
  syncs of the tests that ran.
- ``mode=``, ``kinds=``, ``ignore=`` and ``certainty=`` of the marker are those of `perfkit.detect_syncs`.
- fixture ``syncs``: the same detection (`SyncsFixture`), also without a marker.

Only the body is watched: fixtures are set up before it. The test's own reads, such as ``assert loss.item() < 1``, are
syncs like any other: put them under `perfkit.allow_sync`.

    @pytest.mark.step_history(max_slowdown="10%")
    def test_the_step_is_as_fast_as_it_was(step_history):
        model, batch = Net(), make_batch()
        step_history.measure(lambda: train_step(model, batch))

- ``@pytest.mark.step_history(max_slowdown="10%")``: the test fails if the step that it gives to the fixture
  ``step_history`` is slower by more than the bound than the file of steps has it (``perfkit-steps.json`` in rootdir;
  ini option ``perfkit_steps_baseline``; to be committed). ``pytest --perfkit-update-steps`` records the steps of the
  tests that ran. Compared are ratios to a fixed work, on the same kind of machine alone. On a machine that the file has
  nothing of, or where measurements vary by more than the bound, the test passes, and the summary says so
  (`perfkit.pytest_plugin.step_history`).

`__init__` has pytest's hooks, `syncs_fixture` the fixture, `baseline` the known syncs and the comparison with them;
`step_history` has both for steps, `step_ratio` measures them.

pytest loads this module in every run where perfkit is installed, so importing it imports nothing heavy: torch and
`perfkit.syncs` are imported by the first test that needs them.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

from perfkit.errors import PerfkitError, UsageError
from perfkit.pytest_plugin.baseline import INI_OPTION, UPDATE_OPTION, SyncsBaseline
from perfkit.pytest_plugin.step_history import (
    INI_STEPS,
    UPDATE_STEPS,
    StepBaseline,
    StepHistoryFixture,
    parse_slowdown,
)

if TYPE_CHECKING:
    from perfkit.pytest_plugin.syncs_fixture import SyncsFixture

_MARKER = (
    "max_syncs([n], *, mode='auto', kinds=None, ignore=(), certainty='certain'): fail the test if its body makes more "
    f"than n host-device syncs; without n, if it makes one that the baseline file does not list ({UPDATE_OPTION})"
)
_STEP_MARKER = (
    "step_history(max_slowdown='10%'): fail the test if the step that it measures with the fixture step_history is "
    f"slower than the file of steps has it, by more than this ({UPDATE_STEPS})"
)
_STEPS = pytest.StashKey[StepBaseline]()
_BASELINE = pytest.StashKey[SyncsBaseline]()
_SYNCS = pytest.StashKey["SyncsFixture"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("perfkit", "perfkit: host-device syncs and steps")
    group.addoption(
        UPDATE_OPTION,
        action="store_true",
        help="record the syncs of the tests that run with max_syncs and no number; other tests keep theirs",
    )
    parser.addini(
        INI_OPTION,
        "file of known host-device syncs, relative to rootdir (default: perfkit-syncs.json)",
        default="perfkit-syncs.json",
    )
    group.addoption(
        UPDATE_STEPS,
        action="store_true",
        help="record the steps of the tests that run with step_history; other tests keep theirs",
    )
    parser.addini(
        INI_STEPS, "file of steps, relative to rootdir (default: perfkit-steps.json)", default="perfkit-steps.json"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARKER)
    baseline = config.stash[_BASELINE] = SyncsBaseline(config)
    config.pluginmanager.register(baseline, "perfkit-syncs")
    config.addinivalue_line("markers", _STEP_MARKER)
    steps = config.stash[_STEPS] = StepBaseline(config)
    config.pluginmanager.register(steps, "perfkit-steps")


def max_syncs(
    *n: int, mode: Any = "auto", kinds: Any = None, ignore: Any = (), certainty: Any = "certain"
) -> tuple[int | None, dict[str, Any]]:
    """The marker's number, None if it has none, and its arguments for `perfkit.detect_syncs`.

    Raises:
        UsageError: something else than one number of at least 0 was given.
    """
    if len(n) > 1 or not all(type(number) is int and number >= 0 for number in n):
        raise UsageError(
            f"takes one number of syncs, 0 or more, or none to use the baseline file, got {', '.join(map(repr, n))}"
        )
    return (n[0] if n else None), {"mode": mode, "kinds": kinds, "ignore": ignore, "certainty": certainty}


def pytest_runtest_setup(item: pytest.Item) -> None:
    marker = item.get_closest_marker("max_syncs")
    if marker is None:
        return
    wrong = None
    try:
        limit, arguments = max_syncs(*marker.args, **marker.kwargs)
        if limit is None:
            item.config.stash[_BASELINE].known()
        item.stash[_SYNCS] = _make_fixture(arguments, marked=True, limit=limit)
    except (TypeError, PerfkitError) as error:
        wrong = error
    if wrong is not None:  # outside of the except block, so that pytest shows this line only
        pytest.fail(f"{item.nodeid}: @pytest.mark.max_syncs: {wrong}", pytrace=False)


def _make_fixture(arguments: dict[str, Any], *, marked: bool, limit: int | None) -> SyncsFixture:
    # Here, because most test runs need no sync detection.
    from perfkit.pytest_plugin.syncs_fixture import SyncsFixture
    from perfkit.syncs import detect_syncs

    return SyncsFixture(detect_syncs(**arguments).arguments, marked=marked, limit=limit)


@pytest.fixture
def syncs(request: pytest.FixtureRequest) -> SyncsFixture:
    """Host-device syncs of the test's body: step(), mark_device(model), events, assert_max(n)."""
    stash: pytest.Stash = request.node.stash
    if _SYNCS not in stash:
        stash[_SYNCS] = _make_fixture({}, marked=False, limit=None)
    return stash[_SYNCS]


@pytest.fixture
def step_history(request: pytest.FixtureRequest) -> Generator[StepHistoryFixture, None, None]:
    """The step of the test against its history: measure(step)."""
    marker = request.node.get_closest_marker("step_history")
    wrong: object = None
    try:
        limit = parse_slowdown(*marker.args, **marker.kwargs) if marker is not None else parse_slowdown()
        baseline = request.config.stash[_STEPS]
        baseline.known()
    except (TypeError, PerfkitError) as error:
        wrong = error
    if wrong is not None:  # outside of the except block, so that pytest shows this line only
        pytest.fail(f"{request.node.nodeid}: @pytest.mark.step_history: {wrong}", pytrace=False)
    fixture = StepHistoryFixture(baseline, request.node, limit)
    yield fixture
    if fixture.measured is None and marker is not None:
        pytest.fail("nothing was measured: call step_history.measure(step)", pytrace=False)


# Innermost, so that nothing of other plugins runs under the detection.
@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    syncs = item.stash.get(_SYNCS, None)
    if syncs is None:
        return (yield)
    baseline = item.config.stash[_BASELINE]
    try:
        with syncs:
            result = yield
    except BaseException:
        # The test's own failure is reported first, its syncs below it.
        if syncs.observed and (problem := syncs.problem(baseline, item.nodeid)) is not None:
            item.add_report_section("call", "syncs", problem)
        raise
    if (problem := syncs.problem(baseline, item.nodeid)) is not None:
        pytest.fail(problem, pytrace=False)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    syncs = item.stash.get(_SYNCS, None)
    if syncs is not None and syncs.marked and syncs.limit is None and report.when == "call" and report.passed:
        item.config.stash[_BASELINE].attach(report, syncs.events)
    return report


def pytest_runtest_teardown(item: pytest.Item) -> None:
    # The detection refers to the tensors that were named; the session must not.
    if _SYNCS in item.stash:
        del item.stash[_SYNCS]
