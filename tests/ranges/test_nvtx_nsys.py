"""Ranges in a report of a real Nsight Systems, found in its SQLite export and by perfkit's own reader of it."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from perfkit.measures.host.range_times import measure_range_times
from perfkit.trace import read_trace

#: Kinds of rows in NVTX_EVENTS.
CATEGORY, MARK, PUSH_POP, START_END, DOMAIN = 33, 34, 59, 60, 75


class Event(NamedTuple):
    """A row of NVTX_EVENTS: what the program gave, the domain and category by name."""

    kind: int
    name: str
    domain: str
    category: str | None
    color: int | None
    payload: float | None
    thread: int
    closed: bool


Report = Callable[[str], Path]


@pytest.fixture
def report(tmp_path: Path, real_nsys: str, record_with_nsys: Callable[..., Path]) -> Report:
    """Run a program under nsys; the SQLite export of what it has recorded."""

    def run(program: str) -> Path:
        (tmp_path / "program.py").write_text(textwrap.dedent(program))
        recorded, export = record_with_nsys(sys.executable, "program.py", trace="nvtx"), tmp_path / "r.sqlite"
        done = subprocess.run(
            [real_nsys, "export", "--type", "sqlite", "-o", str(export), str(recorded)],
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return export

    return run


def events(export: Path) -> list[Event]:
    """The rows of NVTX_EVENTS that a program caused, in the order of their begin."""
    with closing(sqlite3.connect(export)) as database:
        database.row_factory = sqlite3.Row
        rows: list[Any] = database.execute(
            "select *, coalesce(text, value) as name from NVTX_EVENTS left join StringIds on id = textId order by start"
        ).fetchall()
    domains = {row["domainId"]: row["name"] for row in rows if row["eventType"] == DOMAIN}
    categories = {(row["domainId"], row["category"]): row["name"] for row in rows if row["eventType"] == CATEGORY}
    return [
        Event(
            kind=row["eventType"],
            name=row["name"],
            domain=domains.get(row["domainId"], "default"),
            category=categories.get((row["domainId"], row["category"])),
            color=row["color"],
            payload=row["doubleValue"] if row["int64Value"] is None else row["int64Value"],
            thread=row["globalTid"],
            closed=row["end"] is not None,
        )
        for row in rows
        if row["eventType"] in (MARK, PUSH_POP, START_END)
    ]


def test_nsys_records_every_range_with_what_it_was_given(report: Report) -> None:
    found = events(
        report(
            """
            import asyncio, threading
            import perfkit
            @perfkit.range("decorated", color="red", category="forward", payload=7)
            def f():
                with perfkit.range("inside", domain="mine", payload=2.5): pass
            async def main():
                async with perfkit.range("overlaps", color="#000001"): await asyncio.sleep(0)
            f()
            perfkit.mark("instant", payload=-1)
            asyncio.run(main())
            thread = threading.Thread(target=perfkit.range("elsewhere")(lambda: None)); thread.start(); thread.join()
            """
        )
    )
    given = [(e.kind, e.name, e.domain, e.category, e.payload) for e in found]

    assert given == [
        (PUSH_POP, "decorated", "perfkit", "forward", 7),
        (PUSH_POP, "inside", "mine", None, 2.5),
        (MARK, "instant", "perfkit", None, -1),
        (START_END, "overlaps", "perfkit", None, None),
        (PUSH_POP, "elsewhere", "perfkit", None, None),
    ]
    assert (found[0].color, found[3].color) == (0xFFFF0000, 0xFF000001)
    assert [e.thread == found[0].thread for e in found] == [True, True, True, True, False]


def test_nsys_finds_all_ranges_closed_after_exceptions_and_toggles_and_perfkit_reads_them(report: Report) -> None:
    export = report(
        """
        import threading, perfkit
        from perfkit.ranges import start_recorder
        @perfkit.range
        def works(n):
            with perfkit.range("inside"):
                if n % 3 == 0: raise ValueError
        def work():
            for n in range(200):
                try: works(n)
                except ValueError: pass
        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads: thread.start()
        for _ in range(20):
            with perfkit.range("toggled"): start_recorder().stop()
        for thread in threads: thread.join()
        """
    )
    found = events(export)
    counts = {"works": 400, "inside": 400, "toggled": 20}

    assert Counter(event.name for event in found) == counts
    assert all(event.closed for event in found)
    assert {row.name: row.count for row in measure_range_times(read_trace(export))} == counts


def test_a_model_has_a_range_per_module_in_nsys(report: Report) -> None:
    found = events(
        report(
            """
            import perfkit, torch
            model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
            with perfkit.annotate_modules(model): model(torch.ones(1, 2))
            model(torch.ones(1, 2))
            """
        )
    )
    assert [event.name for event in found] == ["Sequential", "0", "1"]


def test_domains_arrive_also_where_nsys_says_they_are_off_as_those_before_2024_do(
    report: Report, real_nsys: str
) -> None:
    version = subprocess.run([real_nsys, "--version"], capture_output=True, text=True, check=True).stdout
    found = events(
        report(
            """
            import perfkit, nvtx
            with perfkit.range("through perfkit"): pass
            with nvtx.annotate("through nvtx", domain="asked whether it is on"): pass
            """
        )
    )
    says_off = int(version.partition("version ")[2].split(".")[0]) < 2024

    # If an old one gets both, nvtx has learned to do without asking, and `perfkit.ranges.nvtx_listener._domain` can go.
    assert [event.name for event in found] == ["through perfkit"] + ([] if says_off else ["through nvtx"])
