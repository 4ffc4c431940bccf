"""The baseline: the file of known syncs by test, and which syncs of a test are not in it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from perfkit.errors import UsageError

if TYPE_CHECKING:
    from perfkit.run.records import SyncEvent

UPDATE_OPTION = "--perfkit-update-syncs"
INI_OPTION = "perfkit_syncs_baseline"
_VERSION = 1
#: Syncs named in the summary; the others are counted.
_SHOWN = 20

_Key = tuple[str, str, str, str]


class KnownSync(NamedTuple):
    """The syncs of a test under one key. The number of lines is compared, the lines themselves are for the reader."""

    file: str
    function: str
    op: str
    kind: str
    lines: tuple[int, ...]

    @property
    def key(self) -> _Key:
        return self[:4]

    def __str__(self) -> str:
        return f"{self.file}:{', '.join(map(str, self.lines))} in {self.function}: {self.op} ({self.kind})"


def _key(event: SyncEvent, root: Path) -> _Key:
    return _portable(event.file, root), event.function, event.op, event.kind


def _rows(events: tuple[SyncEvent, ...], root: Path) -> list[KnownSync]:
    lines: dict[_Key, set[int]] = {}
    for event in events:
        lines.setdefault(_key(event, root), set()).add(event.line)
    return sorted(KnownSync(*key, tuple(sorted(found))) for key, found in lines.items())


def _portable(file: str, root: Path) -> str:
    """A file's name that is the same on every machine: relative to site-packages or rootdir if it is below them."""
    if file.startswith("<"):  # a notebook cell, or no file at all
        return file
    path = file.replace(os.sep, "/")
    # First, because an environment is often below rootdir, with a different name on each machine.
    for folder in ("/site-packages/", "/dist-packages/"):
        if folder in path:
            return f"site-packages/{path.rsplit(folder, 1)[1]}"
    try:
        return Path(os.path.realpath(file)).relative_to(os.path.realpath(root)).as_posix()
    except ValueError:
        return path


def _excess(rows: list[KnownSync], others: list[KnownSync]) -> list[KnownSync]:
    """The rows with more lines than ``others`` have under their key, with the lines that ``others`` do not have."""
    lines = {row.key: row.lines for row in others}
    more = [row for row in rows if len(row.lines) > len(lines.get(row.key, ()))]
    return [row._replace(lines=tuple(n for n in row.lines if n not in lines.get(row.key, ()))) for row in more]


class SyncsBaseline:
    """The baseline of a test session: compares each test with the file, and collects what the tests did.

    Under pytest-xdist each worker compares its own tests. The reports carry their syncs to the main process, which
    alone writes the file and prints the summary.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._root = config.rootpath
        self._name = str(config.getini(INI_OPTION))
        self._path = config.rootpath / self._name
        self._updating = bool(config.getoption(UPDATE_OPTION))
        self._known: dict[str, list[KnownSync]] | None = None
        self._damage: str | None = None
        self._found: dict[str, list[KnownSync]] = {}
        self._summary: list[str] = []

    def known(self) -> dict[str, list[KnownSync]]:
        """Known syncs by test; none if the file is missing. The file is read once.

        Raises:
            UsageError: the file cannot be read, or is not a baseline.
        """
        if self._damage is None and self._known is None:
            try:
                self._known = _parse(self._path.read_text(encoding="utf-8"))
            except FileNotFoundError:
                self._known = {}
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                self._damage = (
                    f"{self._name} is not a baseline of syncs that this version of perfkit can read: "
                    f"{type(error).__name__}: {error}. Repair or delete it; it is not overwritten."
                )
        if self._known is None:
            raise UsageError(self._damage)
        return self._known

    def problem(self, nodeid: str, events: tuple[SyncEvent, ...]) -> str | None:
        """The new syncs of a test with what to change, and the known ones it no longer makes; None without new ones."""
        if self._updating:
            return None
        known, found = self.known().get(nodeid, []), _rows(events, self._root)
        new = _excess(found, known)
        if not new:
            return None
        by_key = {_key(event, self._root): event for event in events}
        reason = f"not in {self._name}" if self._path.exists() else f"{self._name} does not exist"
        return "\n".join(
            [
                f"new syncs ({reason}):",
                *(f"+ {row}{self._inside(by_key[row.key])}\n    {by_key[row.key].advice}" for row in new),
                *(f"- {row}" for row in _excess(known, found)),
                f"If they are intended, record them: pytest {UPDATE_OPTION}",
            ]
        )

    def _inside(self, event: SyncEvent) -> str:
        """The line inside a library, if the sync is not the user's."""
        return f", inside {_portable(event.via, self._root)}" if event.owner != "user" and event.via else ""

    def attach(self, report: pytest.TestReport, events: tuple[SyncEvent, ...]) -> None:
        """Store a test's syncs in its report, as lists and strings, which pytest-xdist sends to the main process."""
        report.perfkit_syncs = [[*row.key, list(row.lines)] for row in _rows(events, self._root)]  # type: ignore[attr-defined]

    # -- pytest's hooks

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        rows = getattr(report, "perfkit_syncs", None)
        if rows is not None:
            self._found[report.nodeid] = [
                KnownSync(file, function, op, kind, tuple(lines)) for file, function, op, kind, lines in rows
            ]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(self._config, "workerinput"):
            return
        if self._damage is not None:
            self._summary.append(self._damage)
        elif self._updating:
            self._update(session)
        elif self._found:
            known = self.known()
            fixed = [
                f"no longer a sync: {nodeid}: {row}"
                for nodeid, found in sorted(self._found.items())
                for row in _excess(known.get(nodeid, []), found)
            ]
            if fixed:
                more = [f"and {len(fixed) - _SHOWN} more"] if len(fixed) > _SHOWN else []
                remove = f"To remove them from {self._name}: pytest {UPDATE_OPTION}"
                self._summary += [*fixed[:_SHOWN], *more, remove]

    def _update(self, session: pytest.Session) -> None:
        if not self._found:
            self._summary.append(
                f"{self._name} is unchanged: no test with @pytest.mark.max_syncs without a number passed"
            )
            return
        from perfkit.run.atomic import write_atomically  # most test runs need nothing of perfkit.run

        try:
            known = self.known()
            tests = {nodeid: rows for nodeid, rows in {**known, **self._found}.items() if rows}
            write_atomically(self._path, _as_text(tests).encode())
        except (OSError, UsageError) as error:
            self._summary.append(f"{self._name} was not written: {error}")
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED
            return
        self._summary.append(
            f"{self._name} written: {_count(tests)} known syncs (before: {_count(known)}), "
            f"tests recorded: {len(self._found)}"
        )

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self._summary:
            terminalreporter.section("perfkit: host-device syncs")
            for line in self._summary:
                terminalreporter.write_line(line)


def _count(tests: dict[str, list[KnownSync]]) -> int:
    return sum(len(row.lines) for rows in tests.values() for row in rows)


def _parse(text: str) -> dict[str, list[KnownSync]]:
    """Read the text of a baseline file; anything unexpected is a ValueError, KeyError, TypeError or AttributeError."""
    data = json.loads(text)
    if data["version"] != _VERSION:
        raise ValueError(f"its version is {data['version']!r}, not {_VERSION}")
    known: dict[str, list[KnownSync]] = {}
    for nodeid, rows in data["tests"].items():
        known[nodeid] = [
            KnownSync(row["file"], row["function"], row["op"], row["kind"], tuple(row["lines"])) for row in rows
        ]
        for row in known[nodeid]:
            if not all(isinstance(word, str) for word in row.key) or not all(type(line) is int for line in row.lines):
                raise ValueError(f"{nodeid} has a row of other types: {row}")
    return known


def _as_text(tests: dict[str, list[KnownSync]]) -> str:
    """The baseline file: sorted, one sync per line, so that a change is a small diff."""
    blocks = []
    for nodeid, rows in sorted(tests.items()):
        listed = ",\n".join(f"      {json.dumps(row._asdict(), ensure_ascii=False)}" for row in sorted(rows))
        blocks.append(f"    {json.dumps(nodeid, ensure_ascii=False)}: [\n{listed}\n    ]")
    inside = "{\n" + ",\n".join(blocks) + "\n  }" if blocks else "{}"
    return f'{{\n  "version": {_VERSION},\n  "tests": {inside}\n}}\n'
