"""Reports of Nsight Systems through an nsys: one that stands for it, and a real one where it is installed."""

from __future__ import annotations

import re
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from perfkit.errors import TraceError
from perfkit.trace import Kind
from perfkit.trace.nsight.nsys import read_nsys_report
from perfkit.trace.nsight.report_export import KEPT, export_nsys_report


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A report whose name has a space and looks like an option; caches go into a folder of the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("PERFKIT_NSYS", raising=False)
    (tmp_path / "runs").mkdir()
    file = tmp_path / "runs" / "--a run.nsys-rep"
    file.write_bytes(b"closed format")
    return file


@pytest.fixture
def nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Puts a program in nsys' place that notes each call and then runs ``script`` with the output's path as $out."""
    ready = tmp_path / "ready.sqlite"
    with sqlite3.connect(ready) as database:
        database.execute("create table CUPTI_ACTIVITY_KIND_KERNEL (start, end)")
        database.execute("insert into CUPTI_ACTIVITY_KIND_KERNEL values (1, 9)")
    database.close()

    def place(script: str = f"cp {ready} $out") -> Path:
        program = tmp_path / "nsys"
        program.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/calls\nout=$6\n{script}\n')
        program.chmod(0o755)
        monkeypatch.setenv("PERFKIT_NSYS", str(program))
        return tmp_path / "calls"

    return place


def test_a_report_is_exported_once_and_read_and_nothing_is_left_next_to_it(
    report: Path, nsys: Callable[[], Path]
) -> None:
    calls = nsys()

    first, second = read_nsys_report(report), read_nsys_report(report)

    assert first.path == report
    assert first.end_ns.tolist() == second.end_ns.tolist() == [9]
    assert len(calls.read_text().splitlines()) == 1
    assert calls.read_text().startswith("export --type sqlite --force-overwrite=true -o ")
    assert [file.name for file in report.parent.iterdir()] == [report.name]


def test_a_report_that_changed_is_exported_again_and_only_the_newest_exports_are_kept(
    report: Path, nsys: Callable[[], Path]
) -> None:
    calls = nsys()

    made = set()
    for size in range(KEPT + 3):
        report.write_bytes(b"x" * size)
        made.add(export_nsys_report(report))

    assert len(calls.read_text().splitlines()) == len(made) == KEPT + 3
    assert len(list(made.pop().parent.iterdir())) == KEPT


def test_without_nsys_the_error_names_what_to_install_and_what_to_run_elsewhere(
    report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(TraceError, match=r"install Nsight Systems.*nsys export --type sqlite -o '--a run\.sqlite'"):
        export_nsys_report(report)
    monkeypatch.setenv("PERFKIT_NSYS", "/nowhere/nsys")
    with pytest.raises(TraceError, match="PERFKIT_NSYS names /nowhere/nsys, which is no program"):
        export_nsys_report(report)


def test_what_nsys_prints_when_it_cannot_read_a_report_is_reported_without_its_progress(
    report: Path, nsys: Callable[[str], Path]
) -> None:
    nsys(r"printf 'Exporting: [==50%%  ]\rThe report needs\na newer nsys.\n'; exit 1")

    with pytest.raises(
        TraceError, match=r"\(The report needs a newer nsys\.\).*at least as new as the one that recorded"
    ):
        export_nsys_report(report)


def test_a_recording_that_was_not_imported_is_named_as_that(report: Path) -> None:
    with pytest.raises(TraceError, match="QdstrmImporter -i"):
        export_nsys_report(report.with_suffix(".qdstrm"))


def test_a_report_of_a_real_nsys_has_the_system_calls(
    report: Path, real_nsys: str, record_with_nsys: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    record_with_nsys(sys.executable, "-c", "import time; time.sleep(0.05)", trace="osrt").replace(report)
    monkeypatch.setenv("PERFKIT_NSYS", real_nsys)

    trace = read_nsys_report(report)

    slept = trace.name_matches(re.compile("nanosleep|select")) & trace.is_kind(Kind.RUNTIME)
    assert (trace.end_ns - trace.start_ns)[slept].max() >= 50_000_000
    assert len(set(trace.names)) > 5
