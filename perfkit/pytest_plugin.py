"""The pytest plugin: tests that fail on host-device syncs, by number or against a file of known ones.

    @pytest.mark.max_syncs(0)
    def test_step_never_waits(syncs):
        model = Net()
        syncs.mark_device(model)  # only where the test itself asks for no cuda
        train_step(model, batch())

- ``@pytest.mark.max_syncs(n)``: the test's body runs under `perfkit.detect_syncs`; more than ``n`` syncs fail it.
- ``@pytest.mark.max_syncs``, with no number: the ratchet. Syncs that the baseline file (``perfkit-syncs.json``
  at rootdir; ini option ``perfkit_syncs_baseline``) holds for this test pass, others fail, and
  ``pytest --perfkit-update-syncs`` records what the tests that ran do now.
- ``mode=``, ``kinds=``, ``ignore=`` and ``certainty=`` of the marker are those of `perfkit.detect_syncs`.
- fixture ``syncs``: the same detection (`SyncsFixture`), also without a marker.

Only the body is watched: fixtures are set up before it. Reads of the test's own, as in
``assert loss.item() < 1``, are syncs like any other: put them under `perfkit.allow_sync`.

pytest loads this module in every run where perfkit is installed, so importing it imports nothing heavy:
torch and `perfkit.syncs` come with the first test that asks for them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from perfkit.errors import PerfkitError, SyncBudgetExceeded, UsageError

if TYPE_CHECKING:
    from types import TracebackType

    from perfkit.run.records import SyncEvent
    from perfkit.syncs import SyncDetector

_UPDATE = "--perfkit-update-syncs"
_INI = "perfkit_syncs_baseline"
_VERSION = 1
#: Syncs that are gone are named up to this many; the rest is counted.
_SHOWN = 20

_MARKER = (
    "max_syncs([n], *, mode='auto', kinds=None, ignore=(), certainty='certain'): fail the test when its body makes "
    f"more than n host-device syncs; without n, when it makes one that is not in the baseline file ({_UPDATE})"
)


class SyncsFixture:
    """The sync detection of one test; runs while the test's body does, and is what the fixture ``syncs`` gives.

    ``detection`` is the `perfkit.detect_syncs` behind it, with its table, JSON and note.
    """

    def __init__(self, **arguments: Any) -> None:
        self._arguments = arguments
        self._named = False
        self._running = False
        self.detection = self._detect()

    def _detect(self, **more: Any) -> SyncDetector:
        from perfkit.syncs import detect_syncs

        return detect_syncs(**self._arguments, **more)

    def __enter__(self) -> None:
        self.detection.start()
        self._running = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._running = False
        self.detection.__exit__(kind, error, trace)

    def step(self) -> None:
        """Say that a training step has ended: events then tell how often per step."""
        self.detection.step()

    def mark_device(self, *things: Any) -> None:
        """Count modules, optimizers or tensors as being on the device; dry run only.

        For a test that runs on the CPU and asks for no cuda. The first call decides that: the dry run then
        follows the named tensors and pretends no CUDA device, unless a tensor was on that device already.

        Raises:
            UsageError: something else was given, or a tensor that is not on the CPU.
        """
        if self._named or self.detection.mode == "cuda" or self.detection.observed:
            self.detection.mark_device(*things)
        else:
            before, self.detection = self.detection, self._detect(device_of=things)
            if self._running:
                before.stop()
                self.detection.start()
        self._named = True

    @property
    def events(self) -> tuple[SyncEvent, ...]:
        """One event per line and operation up to now, the longest or most frequent first."""
        return self.detection.events

    @property
    def observed(self) -> bool:
        """Whether a tensor was ever on the (simulated) device; if not, nothing was checked."""
        return self.detection.observed

    def assert_max(self, most: int = 0) -> None:
        """Fail when more than ``most`` syncs were counted up to now, or nothing was checked.

        Raises:
            UsageError: ``most`` is negative.
            SyncBudgetExceeded: see above.
        """
        __tracebackhide__ = True
        try:
            self.detection.assert_max(most)
        except SyncBudgetExceeded as error:
            if self.observed:
                raise
            raise SyncBudgetExceeded(_in_a_test(str(error))) from None

    def __repr__(self) -> str:
        return repr(self.detection)


def _in_a_test(why_unobserved: str) -> str:
    """Why nothing was checked, with what to write in a test where the fix is to name a model."""
    if "device_of" not in why_unobserved:
        return why_unobserved
    return f"{why_unobserved}\nIn a test: take the fixture `syncs` and call syncs.mark_device(model)."


class _Row(NamedTuple):
    """The syncs of a test under one key; how many lines there are counts, which ones is for the reader."""

    file: str
    function: str
    op: str
    kind: str
    lines: tuple[int, ...]

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self[:4]

    def __str__(self) -> str:
        where = ", ".join(map(str, self.lines))
        return f"{self.file}:{where} in {self.function}: {self.op} ({self.kind})"


def _key(event: SyncEvent, root: Path) -> tuple[str, str, str, str]:
    return _portable(event.file, root), event.function, event.op, event.kind


def _rows(events: tuple[SyncEvent, ...], root: Path) -> list[_Row]:
    """The events under the keys of the baseline, sorted."""
    lines: dict[tuple[str, str, str, str], set[int]] = {}
    for event in events:
        lines.setdefault(_key(event, root), set()).add(event.line)
    return sorted(
        _Row(file, function, op, kind, tuple(sorted(found))) for (file, function, op, kind), found in lines.items()
    )


def _portable(file: str, root: Path) -> str:
    """A file's name that is the same on every machine: below site-packages or rootdir where it lies there."""
    if file.startswith("<"):  # a notebook cell, or no file at all
        return file
    path = file.replace(os.sep, "/")
    # First, as an environment often lies below rootdir, under a name of its own on each machine.
    for folder in ("/site-packages/", "/dist-packages/"):
        if folder in path:
            return f"site-packages/{path.rsplit(folder, 1)[1]}"
    try:
        return Path(os.path.realpath(file)).relative_to(os.path.realpath(root)).as_posix()
    except ValueError:
        return path


class _Change(NamedTuple):
    """What a test does beyond its known syncs, and which of these it no longer does; lines are the unknown ones."""

    new: list[_Row]
    gone: list[_Row]


def _compare(known: list[_Row], found: list[_Row]) -> _Change:
    before = {row.key: row.lines for row in known}
    now = {row.key: row.lines for row in found}
    return _Change(_beyond(found, before), _beyond(known, now))


def _beyond(rows: list[_Row], other: dict[tuple[str, str, str, str], tuple[int, ...]]) -> list[_Row]:
    """The rows with more lines than ``other`` has under their key; of these the lines that it does not have."""
    more = [row for row in rows if len(row.lines) > len(other.get(row.key, ()))]
    return [row._replace(lines=tuple(n for n in row.lines if n not in other.get(row.key, ()))) for row in more]


class _Baseline:
    """The file of known syncs, read when the first test asks; gathers what the tests of this session did.

    Under pytest-xdist each worker compares its own tests; the reports carry what they did to the main
    process, which alone writes the file and tells.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._root = config.rootpath
        self.name = str(config.getini(_INI))
        self._path = config.rootpath / self.name
        self.updating = bool(config.getoption(_UPDATE))
        self._known: dict[str, list[_Row]] | None = None
        self._damage: str | None = None
        self._found: dict[str, list[_Row]] = {}
        self._told: list[str] = []

    def known(self) -> dict[str, list[_Row]]:
        """Known syncs by test; none where the file is missing.

        Raises:
            UsageError: the file cannot be read, or holds something else.
        """
        if self._damage is None and self._known is None:
            try:
                self._known = _parse(self._path.read_text(encoding="utf-8"))
            except FileNotFoundError:
                self._known = {}
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                self._damage = (
                    f"{self.name} holds no baseline of syncs that this perfkit can read: "
                    f"{type(error).__name__}: {error}. Repair it or delete it; it is not overwritten."
                )
        if self._damage is not None:
            raise UsageError(self._damage)
        assert self._known is not None
        return self._known

    def problem(self, nodeid: str, events: tuple[SyncEvent, ...]) -> str | None:
        """The new syncs of a test with what to change, and the known ones that are gone; None without new ones."""
        if self.updating:
            return None
        new, gone = _compare(self.known().get(nodeid, []), _rows(events, self._root))
        if not new:
            return None
        by_key = {_key(event, self._root): event for event in events}
        why = f"not in {self.name}" if self._path.exists() else f"as there is no {self.name} yet"
        return "\n".join(
            [
                f"new syncs, {why}:",
                *(f"+ {row}{self._inside(by_key[row.key])}\n    {by_key[row.key].advice}" for row in new),
                *(f"- {row}" for row in gone),
                f"Where they are meant, record them: pytest {_UPDATE}",
            ]
        )

    def _inside(self, event: SyncEvent) -> str:
        """Where inside a library the sync is, where it is not the user's."""
        return f", inside {_portable(event.via, self._root)}" if event.owner != "user" and event.via else ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        rows = getattr(report, "perfkit_syncs", None)
        if rows is not None:
            self._found[report.nodeid] = [
                _Row(file, function, op, kind, tuple(lines)) for file, function, op, kind, lines in rows
            ]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(self._config, "workerinput"):
            return
        if self._damage is not None:
            self._told.append(self._damage)
        elif self.updating:
            self._update(session)
        elif self._found:
            known = self.known()
            gone = [
                f"gone: {nodeid}: {row}"
                for nodeid, found in sorted(self._found.items())
                for row in _compare(known.get(nodeid, []), found).gone
            ]
            if gone:
                more = [f"and {len(gone) - _SHOWN} more"] if len(gone) > _SHOWN else []
                self._told += [*gone[:_SHOWN], *more, f"To forget them in {self.name}: pytest {_UPDATE}"]

    def _update(self, session: pytest.Session) -> None:
        if not self._found:
            self._told.append(f"{self.name} is unchanged: no test with @pytest.mark.max_syncs and no number passed")
            return
        try:
            known = self.known()
            tests = {nodeid: rows for nodeid, rows in {**known, **self._found}.items() if rows}
            _write(self._path, _as_text(tests))
        except (OSError, UsageError) as error:
            self._told.append(f"{self.name} was not written: {error}")
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED
            return
        count = sum(len(row.lines) for rows in tests.values() for row in rows)
        before = sum(len(row.lines) for rows in known.values() for row in rows)
        self._told.append(
            f"{self.name} written: known syncs {count} (before: {before}), tests that ran {len(self._found)}"
        )

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self._told:
            terminalreporter.section("perfkit: host-device syncs")
            for line in self._told:
                terminalreporter.write_line(line)


def _parse(text: str) -> dict[str, list[_Row]]:
    """Read the baseline file's text; anything unexpected is a ValueError, KeyError, TypeError or AttributeError."""
    data = json.loads(text)
    if data["version"] != _VERSION:
        raise ValueError(f"it is of version {data['version']!r}, not {_VERSION}")
    known: dict[str, list[_Row]] = {}
    for nodeid, rows in data["tests"].items():
        known[nodeid] = [
            _Row(row["file"], row["function"], row["op"], row["kind"], tuple(row["lines"])) for row in rows
        ]
        for row in known[nodeid]:
            if not all(isinstance(word, str) for word in row.key) or not all(type(line) is int for line in row.lines):
                raise ValueError(f"{nodeid} has a row of other types: {row}")
    return known


def _as_text(tests: dict[str, list[_Row]]) -> str:
    """The baseline file: sorted, one sync per line, so that a change is a small diff."""
    blocks = []
    for nodeid, rows in sorted(tests.items()):
        listed = ",\n".join(f"      {json.dumps(row._asdict(), ensure_ascii=False)}" for row in sorted(rows))
        blocks.append(f"    {json.dumps(nodeid, ensure_ascii=False)}: [\n{listed}\n    ]")
    inside = "{\n" + ",\n".join(blocks) + "\n  }" if blocks else "{}"
    return f'{{\n  "version": {_VERSION},\n  "tests": {inside}\n}}\n'


def _write(path: Path, text: str) -> None:
    """Write the whole file or nothing: a file beside it takes its place."""
    beside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        beside.write_text(text, encoding="utf-8")
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


# -- hooks

_BASELINE = pytest.StashKey[_Baseline]()


@dataclass
class _Watched:
    """What a test carries while it is watched."""

    syncs: SyncsFixture
    #: Whether the marker asks for a check, and its number; None where the baseline decides.
    checked: bool = False
    most: int | None = None
    #: What a test against the baseline did, once its body has passed.
    rows: list[_Row] | None = None


_WATCHED = pytest.StashKey[_Watched]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("perfkit", "perfkit: host-device syncs")
    group.addoption(
        _UPDATE,
        action="store_true",
        help="record the syncs of tests marked max_syncs without a number; other tests keep theirs",
    )
    parser.addini(
        _INI,
        "file of known host-device syncs, relative to rootdir (default: perfkit-syncs.json)",
        default="perfkit-syncs.json",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARKER)
    baseline = config.stash[_BASELINE] = _Baseline(config)
    config.pluginmanager.register(baseline, "perfkit-syncs")


def max_syncs(
    *n: int, mode: Any = "auto", kinds: Any = None, ignore: Any = (), certainty: Any = "certain"
) -> tuple[int | None, dict[str, Any]]:
    """The marker's number, None without one, and its arguments for `perfkit.detect_syncs`.

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
        most, arguments = max_syncs(*marker.args, **marker.kwargs)
        if most is None:
            item.config.stash[_BASELINE].known()
        syncs = SyncsFixture(**arguments)
    except (TypeError, PerfkitError) as error:
        wrong = error
    if wrong is not None:  # out here, where pytest shows this line only
        pytest.fail(f"{item.nodeid}: @pytest.mark.max_syncs: {wrong}", pytrace=False)
    item.stash[_WATCHED] = _Watched(syncs, checked=True, most=most)


@pytest.fixture
def syncs(request: pytest.FixtureRequest) -> SyncsFixture:
    """Host-device syncs of the test's body: step(), mark_device(model), events, assert_max(n)."""
    stash: pytest.Stash = request.node.stash
    if _WATCHED not in stash:
        stash[_WATCHED] = _Watched(SyncsFixture())
    return stash[_WATCHED].syncs


# Innermost, so that nothing of other plugins runs under the detection.
@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    watched = item.stash.get(_WATCHED, None)
    if watched is None:
        return (yield)
    try:
        with watched.syncs:
            result = yield
    except BaseException:
        # The test's own failure comes first; its syncs are told below it.
        if watched.syncs.observed and (problem := _problem(item, watched)) is not None:
            item.add_report_section("call", "syncs", problem)
        raise
    if (problem := _problem(item, watched)) is not None:
        pytest.fail(problem, pytrace=False)
    if watched.checked and watched.most is None:
        watched.rows = _rows(watched.syncs.events, item.config.rootpath)
    return result


def _problem(item: pytest.Item, watched: _Watched) -> str | None:
    """Why the syncs of a test fail it; None where they are allowed, or no marker asks."""
    syncs = watched.syncs
    if not watched.checked:
        return None
    if watched.most is None and syncs.observed:
        return item.config.stash[_BASELINE].problem(item.nodeid, syncs.events)
    try:
        syncs.assert_max(watched.most or 0)
    except SyncBudgetExceeded as error:
        return str(error)
    return None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    watched = item.stash.get(_WATCHED, None)
    if watched is not None and watched.rows is not None and report.when == "call" and report.passed:
        # Lists and strings: pytest-xdist carries extra attributes of a report to the main process.
        report.perfkit_syncs = [[*row.key, list(row.lines)] for row in watched.rows]  # type: ignore[attr-defined]
    return report


def pytest_runtest_teardown(item: pytest.Item) -> None:
    # The detection holds the tensors that were named; the session must not.
    if _WATCHED in item.stash:
        del item.stash[_WATCHED]
